"""Module paths as people write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gpuledger.files.reading import storable

OUTSIDE = -1
"""Id of no module."""

_ELEMENT = re.compile(r"\[\d+\]")

_COMPILED = "OptimizedModule"
"""Class of what ``torch.compile`` returns for a module."""


def with_names(
    modules: list[dict[str, Any]], variables: Iterable[tuple[int, str]], classes: Iterable[tuple[int, str]]
) -> list[dict[str, Any]]:
    """Return modules with the names that the program has for some outermost ones, and with the classes that they got.

    Args:
        modules: As for :func:`module_rows`.
        variables: Ids of outermost modules, and their names.
        classes: Ids of modules that have changed their classes, and the names of the last ones.
    """
    named = [dict(entry) for entry in modules]
    for key, found in (("variable", variables), ("class_name", classes)):
        for number, name in found:
            if 0 <= number < len(modules):
                named[number][key] = name
    return named


def without_wrappers(
    modules: list[dict[str, Any]], called_roots: Collection[int], models: Iterable[tuple[int, int]]
) -> tuple[list[dict[str, Any]], set[int]]:
    """Return modules and called outermost modules, with models that were found in wrappers as outermost ones.

    A library can make a wrapper for each use of a model, and call the model through it.

    Args:
        modules: As for :func:`module_rows`.
        called_roots: Ids of the outermost modules that were called.
        models: Ids of such models and of their wrappers.

    Returns:
        The modules, with the path ``around`` of the model in the wrapper; and the ids of the called outermost modules.
    """
    placed, called = list(modules), set(called_roots)
    for model, wrapper in models:
        if not 0 <= model < len(placed):
            continue
        called |= {model} if wrapper in called else set()
        root, around = placed[model]["root"], placed[model]["path"]
        if root == model or not around:
            continue
        for number, entry in enumerate(placed):
            if entry["root"] == root and f"{entry['path']}.".startswith(f"{around}."):
                path = entry["path"].removeprefix(around).removeprefix(".")
                placed[number] = {**entry, "root": model, "path": path, "around": around}
        placed[model] = {**placed[model], "parent": OUTSIDE}
    return placed, called


def in_containers(
    modules: list[dict[str, Any]], called_roots: Collection[int], contained: Iterable[tuple[int, int, int, str]]
) -> tuple[list[dict[str, Any]], set[int]]:
    """Return modules and called outermost modules, with the paths that they have in the module that contains them.

    A program that calls parts of a model, such as ``model.encoder(x)``, shows them as outermost modules. The model is
    found later. Parts of an outermost module that was freed can be in another model, too, which has them now.

    Args:
        modules: As for :func:`module_rows`.
        called_roots: Ids of the outermost modules that were called.
        contained: Id of such a part, of the outermost module that contains it, of its parent, and its path in there.

    Returns:
        The modules, with the path ``above`` that of the outermost module as which a part was found, and ``path_before``
        for a part of a freed module; and the ids of the called outermost modules.
    """
    places = {
        part: (root, parent, path)
        for part, root, parent, path in contained
        if 0 <= part < root < len(modules) and modules[root]["root"] == root and 0 <= parent < len(modules)
    }
    placed = []
    for number, entry in enumerate(modules):
        is_left = number in places and entry["root"] != number
        root, above = _placed(number if is_left else entry["root"], places)
        parent = places[number][1] if number in places else entry["parent"]
        path = above if is_left else ".".join(part for part in (above, entry["path"]) if part)
        placed.append({**entry, "root": root, "parent": parent, "path": path, "above": above})
        if is_left:
            placed[-1]["path_before"] = entry["path"]
    return placed, {_placed(root, places)[0] for root in called_roots}


def _placed(root: int, places: Mapping[int, tuple[int, int, str]]) -> tuple[int, str]:
    """Return the outermost module that contains another one, and the path in it. Containers have higher ids."""
    path = ""
    while root in places:
        root, _, above = places[root]
        path = ".".join(part for part in (above, path) if part)
    return root, path


def module_rows(modules: list[dict[str, Any]], called_roots: Collection[int]) -> list[dict[str, Any]]:
    """Return the rows of the ``modules`` table.

    Each entry of ``modules`` has ``path`` (qualified name below its outermost module, "" for that one itself),
    ``class_name``, ``parent`` and ``root`` (ids, -1 for none), ``parameters`` (its own) and ``compiled``.

    Where one outermost module that was called holds parameters, what is below it goes by its plain qualified name, as
    in ``named_modules()``. With several (a GAN), and for modules that were never called (an EMA copy), each path begins
    with the outermost module's class, numbered when the class repeats, or with its ``variable``.
    """
    labels = _root_labels(modules)
    plain_root = _plain_root(modules, called_roots)
    rows = []
    for number, entry in enumerate(modules):
        path = _join(labels[entry["root"]], entry["path"], plain=entry["root"] == plain_root)
        rows.append(
            {
                "module_id": number,
                "parent_id": entry["parent"] if entry["parent"] >= 0 else None,
                "path": storable(path),
                "class_name": storable(str(entry["class_name"])),
                "root_id": entry["root"],
                "depth": entry["path"].count(".") + 1 if entry["path"] else 0,
                "compiled": bool(entry["compiled"]),
            }
        )
    return rows


def qualified_names(
    names: list[str], owners: Mapping[int, int], modules: list[dict[str, Any]], called_roots: Collection[int]
) -> list[str]:
    """Return the names of parameters and buffers, with the outermost module's class where its modules have it too.

    Args:
        names: By name id.
        owners: Module id by name id; a name without one stays as it is.
        modules: As for :func:`module_rows`.
        called_roots: As for :func:`module_rows`.
    """
    labels = _root_labels(modules)
    plain_root = _plain_root(modules, called_roots)
    qualified = []
    for number, name in enumerate(names):
        owner = owners.get(number, -1)
        known = modules[owner] if 0 <= owner < len(modules) else {}
        root, above = known.get("root", plain_root), known.get("above")
        name = name.removeprefix(f"{known['around']}.") if "around" in known else name
        path = f"{above}.{name.removeprefix(known.get('path_before', '')).lstrip('.')}" if above else name
        qualified.append(storable(path if root in (plain_root, None) else f"{labels[root]}.{path}"))
    return qualified


def _plain_root(modules: list[dict[str, Any]], called_roots: Collection[int]) -> int | None:
    """Return the one outermost module that was called and holds parameters; None where there are several or none."""
    found = {entry["root"] for entry in modules if entry["parameters"] and entry["root"] in called_roots}
    return found.pop() if len(found) == 1 else None


def _join(label: str, path: str, *, plain: bool) -> str:
    if not path:
        return label
    return path if plain else f"{label}.{path}"


def _root_labels(modules: list[dict[str, Any]]) -> dict[int, str]:
    """Return ``root id -> label``: the name that the program has for it alone, else its class.

    A class that repeats has ``#2``, ``#3``, …

    A compiled module goes by the class of the module that was compiled, so that it has the name of an uncompiled run.
    """
    inside = {
        entry["root"]: entry for number, entry in enumerate(modules) if entry["root"] != number and not entry["path"]
    }
    roots = [entry for number, entry in enumerate(modules) if entry["root"] == number]
    variables = Counter(entry.get("variable") for entry in roots)
    seen: Counter[str] = Counter()
    labels = {}
    for number, entry in enumerate(modules):
        if entry["root"] == number and variables[variable := entry.get("variable")] == 1 and variable is not None:
            labels[number] = str(variable)
        elif entry["root"] == number:
            named = inside.get(number, entry) if entry["class_name"] == _COMPILED else entry
            name = str(named["class_name"])
            seen[name] += 1
            labels[number] = name if seen[name] == 1 else f"{name}#{seen[name]}"
    return labels


class ModulesBelow:
    """Finds modules by their path below another module.

    Args:
        modules: The journal's modules.
    """

    def __init__(self, modules: Sequence[dict[str, Any]]) -> None:
        self._modules = modules
        self._ids = {(one["root"], one["path"]): number for number, one in enumerate(modules)}

    def find(self, base: int, path: str, compiled_id: int) -> int:
        """Return the module at ``path`` below ``base``.

        If there is none, it is the module for which the code was compiled if that is inside ``base``, else ``base``.
        Outside modules it is the module for which the code was compiled.
        """
        is_known = 0 <= compiled_id < len(self._modules)
        if not 0 <= base < len(self._modules):
            return compiled_id if is_known else OUTSIDE
        above = self._modules[base]
        full = f"{above['path']}.{path}" if above["path"] and path else above["path"] or path
        found = self._ids.get((above["root"], full))
        wrapped = above.get("wraps", OUTSIDE)
        if found is None and OUTSIDE < wrapped < base:  # a wrapper around a model that has another path
            return self.find(wrapped, path, compiled_id)
        if found is None and is_known and self._is_below(compiled_id, base):
            return compiled_id
        return base if found is None else found

    def _is_below(self, number: int, base: int) -> bool:
        module, above = self._modules[number], self._modules[base]
        return bool(
            module["root"] == above["root"] and (not above["path"] or module["path"].startswith(f"{above['path']}."))
        )


class ModulesAround:
    """Finds the module around two modules.

    Args:
        modules: The journal's modules.
    """

    def __init__(self, modules: Sequence[dict[str, Any]]) -> None:
        self._parents = [int(one["parent"]) for one in modules]

    def of(self, one: int, other: int) -> int:
        """Return the id of the innermost module that contains both; -1 if there is none."""
        around = self._up_from(one)
        return next((module for module in self._up_from(other) if module in around), -1)

    def _up_from(self, module: int) -> list[int]:
        found: list[int] = []
        while 0 <= module < len(self._parents) and module not in found:
            found.append(module)
            module = self._parents[module]
        return found


class CompiledKernels:
    """Knows what kernels of compiled code compute, and the module in which they call other compiled code.

    Args:
        modules: The journal's modules.
        fusions: The fact ``fusions``.
    """

    def __init__(self, modules: Sequence[dict[str, Any]], fusions: Sequence[dict[str, Any]]) -> None:
        self._below = ModulesBelow(modules)
        self._fusions = fusions

    def _parts(self, number: int) -> Sequence[dict[str, Any]]:
        return (self._fusions[number].get("parts") if number < len(self._fusions) else None) or ()

    def computes_modules(self, number: int) -> bool:
        """Return whether a kernel was compiled for modules. They run in forward, also if nothing calls them."""
        return any(part.get("module_id", OUTSIDE) > OUTSIDE for part in self._parts(number))

    def is_in_optimizer(self, number: int) -> bool:
        """Return whether a kernel is part of an optimizer's step."""
        return number < len(self._fusions) and bool(self._fusions[number].get("in_optimizer"))

    def of(self, number: int, base: int) -> int:
        """Return the module of a kernel that was launched inside module ``base``: the one that moves most bytes."""
        parts = self._parts(number)
        if not parts:
            return base
        most = max(parts, key=lambda part: int(part.get("moved_bytes", 0)))
        return self._below.find(base, most.get("path", ""), most.get("module_id", OUTSIDE))


def without_number(component: str) -> str:
    """Return a component of a path with * for its number: ``*`` for ``0``, ``models[*]`` for ``models[0]``."""
    return "*" if component.isdecimal() else _ELEMENT.sub("[*]", component)


def common_pattern(paths: Sequence[str]) -> str:
    """Return paths that differ only in numbers as one, with * for the numbers that differ."""
    parts = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(same[0] if len(set(same)) == 1 else without_number(same[0]) for same in parts)
