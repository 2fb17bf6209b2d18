"""Short names of kernels and operators, from C++ signatures of up to 400 characters."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import combinations

_BACKWARD = "autograd::engine::evaluate_function: "
_GENERIC = re.compile(r"(device_)?kernel\d*", re.IGNORECASE)
"""Names without meaning, such as ``cutlass::Kernel2``. The first template argument is used instead."""
_SIGNATURE = re.compile(r"(?<=[\w>])\(")
_TILES = re.compile(r"(_tilesize\d+(?:x\d+)*)_.*")
"""Part of a cuBLAS or cuDNN name after the tile sizes: stages, alignment, the library."""
_FEATURE = re.compile(r"(?<![\w#])[A-Za-z_]\w*(?!\w|::)")
_NUMBER = re.compile(r"\b\d+\b")
_COMMON = frozenset(
    {"array", "bool", "char", "const", "cuda", "double", "float", "half", "int", "lambda", "long", "operator", "short"}
    | {"signed", "std", "true", "false", "type", "unsigned", "void", "BFloat16", "Half", "OpaqueType", "Scalar"}
    | {"Tensor", "TensorIterator", "TensorIteratorBase", "gpu_kernel_impl", "gpu_kernel_impl_nocast"}
    | {f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Words of template arguments that do not describe the kernel."""
_MOST_FEATURES, _MOST_TOGETHER = 10, 3


def short_kernel_name(name: str) -> str:
    """Return a kernel's or operator's name without return type, namespaces, template arguments and parameters.

    ``void at::native::vectorized_elementwise_kernel<4, …>(int, …)`` is ``vectorized_elementwise_kernel``, an operator
    of autograd's engine is ``AddmmBackward0 (backward)``. Other names are not changed.
    """
    if name.startswith(_BACKWARD):
        return f"{name.removeprefix(_BACKWARD).rpartition('::')[2]} (backward)"
    head, arguments = _parts(name)
    if head == name:
        return _TILES.sub(r"\1", _from_mangled(name))
    *spaces, last = head.split(" ")[-1].split("::")
    if not _GENERIC.fullmatch(last):
        return last or name
    first = short_kernel_name(_split(arguments)[0]).split("::")[-1] if arguments else ""
    return first if len(first) > len("unsigned") else "::".join([*spaces[-1:], last])


def short_kernel_names(names: Iterable[str]) -> dict[str, str]:
    """Return ``name -> short name``; names that would be equal keep a part of their arguments."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(short_kernel_name(name), []).append(name)
    found: dict[str, str] = {}
    taken = set(groups)
    for short, members in groups.items():
        features = [_features(name) for name in members]
        for place, name in enumerate(members):
            others = [one for number, one in enumerate(features) if number != place]
            label = short if not others else _distinct(short, features[place], others) if "<" in name else name
            number = 2
            while others and label in taken:
                label, number = f"{short} #{number}", number + 1
            taken.add(label)
            found[name] = label
    return found


def _distinct(short: str, own: Sequence[str], others: Sequence[Sequence[str]]) -> str:
    """Return ``short`` with the smallest set of features that no other name has; later features are preferred."""
    for count in range(1, _MOST_TOGETHER + 1):
        for chosen in combinations(own, count):
            if not any(set(chosen) <= set(other) for other in others):
                return f"{short}<{', '.join(reversed(chosen))}>"
    return short


def _features(name: str) -> list[str]:
    """Return names and numbers in the template arguments: functors before numbers, innermost first."""
    arguments = _parts(name)[1]
    words = [word for word in _FEATURE.findall(arguments) if word not in _COMMON]
    return list(dict.fromkeys([*reversed(words), *reversed(_NUMBER.findall(arguments))]))[:_MOST_FEATURES]


def _parts(name: str) -> tuple[str, str]:
    """Return a C++ signature without arguments, and the function's template arguments. Other names are not split."""
    text = name.replace("(anonymous namespace)::", "").replace("`anonymous namespace'::", "")
    if "<" not in text and not _SIGNATURE.search(text):
        return text, ""
    head, arguments, depth = "", "", 0
    for place, character in enumerate(text):
        if character == "(" and depth == 0 and _SIGNATURE.match(text, place):
            break
        if character == "<":
            arguments = "" if depth == 0 else arguments + character
            depth += 1
        elif character == ">" and depth:
            depth -= 1
            arguments += character if depth else ""
        elif depth:
            arguments += character
        else:
            head += character
    return head.strip(), arguments


def _split(arguments: str) -> list[str]:
    """Return the template arguments as a list."""
    found, depth = [""], 0
    for character in arguments:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [one.strip() for one in found]


def _from_mangled(name: str) -> str:
    """Return the function of a mangled name, ``_ZN2at6native4fillEv``: ``fill``; other names are not changed."""
    place, last = 0, ""
    start = re.match(r"_ZN?", name)
    while start and (digits := re.compile(r"\d+").match(name, place or start.end())):
        place = digits.end() + int(digits[0])
        last = name[digits.end() : place]
    return last or name
