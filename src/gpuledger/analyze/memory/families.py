"""Repeated modules: the layers of a transformer, the blocks of a residual network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

FEWEST = 4
"""Minimum number of repeated modules."""
_LISTS = ("ModuleList", "ModuleDict")
"""Classes of modules that only hold others. Beside each other, they are different parts of a model, not its layers."""


@dataclass(frozen=True)
class ModuleFamily:
    """Sibling modules of one class. ``subtrees`` are the ids of each module and its descendants.

    ``depth`` is the number of components of their paths.
    """

    name: str
    depth: int
    class_name: str
    count: int
    subtrees: tuple[tuple[int, ...], ...]

    @property
    def members(self) -> tuple[int, ...]:
        """Return the ids of all these modules and their descendants."""
        return tuple(number for subtree in self.subtrees for number in subtree)


def find_families(rank: Rank) -> tuple[ModuleFamily, ...]:
    """Return the families of a rank's modules, outer ones first."""
    columns = ("module_id", "parent_id", "path", "class_name")
    table = rank.table("modules", columns)
    rows = list(zip(*(table[name].to_pylist() for name in columns), strict=True))
    parent = {number: above for number, above, _, _ in rows}
    kinds: dict[tuple[int, str], list[int]] = {}
    for number, above, _, class_name in rows:
        if above is not None and class_name not in _LISTS:
            kinds.setdefault((above, class_name), []).append(number)
    paths = {number: path for number, _, path, _ in rows}
    families = []
    for (_, class_name), siblings in sorted(kinds.items(), key=lambda item: item[1][0]):
        if len(siblings) >= FEWEST:
            found = set(siblings)
            tops = {number: _sibling_above(number, found, parent) for number in parent}
            subtrees = tuple(tuple(at for at, top in tops.items() if top == sibling) for sibling in siblings)
            name = _name([paths[number] for number in siblings], class_name)
            depth = paths[siblings[0]].count(".") + 1
            families.append(ModuleFamily(name, depth, class_name, len(siblings), subtrees))
    return tuple(families)


def _sibling_above(number: int, siblings: set[int], parent: dict[int, int | None]) -> int | None:
    """Return the sibling that a module is or is below; None if there is none. Stops at a cycle (a damaged table)."""
    at: int | None = number
    seen: set[int] = set()
    while at is not None and at not in seen:
        if at in siblings:
            return at
        seen.add(at)
        at = parent.get(at)
    return None


def _name(paths: list[str], class_name: str) -> str:
    """Return the siblings' common name: ``layers.* (32)`` for ``layers.0`` and so on, ``layer* (4)`` for ``layer1``.

    Children of the outermost module without a name in common have their class instead: ``4 × Block``.
    """
    outer, dot, _ = paths[0].rpartition(".")
    names = {path.rpartition(".")[2].rstrip("0123456789") for path in paths}
    pattern = f"{outer}{dot}{names.pop() if len(names) == 1 else ''}*"
    return f"{len(paths)} × {class_name}" if pattern == "*" else f"{pattern} ({len(paths)})"
