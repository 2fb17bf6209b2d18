"""The tree of modules with the memory of each at one instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.breakdown import coded_categories
from gpuledger.analyze.memory.lifetimes import I64, distinct, read_lives, read_numbers
from gpuledger.analyze.memory.lines.source_lines import WITHOUT_LINE
from gpuledger.model.accounts import ROUNDING

if TYPE_CHECKING:
    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.model.run import Rank

OUTSIDE_PATH = "(outside modules)"
ROUNDING_PATH = "(rounding)"
NOT_LINES = WITHOUT_LINE | {ROUNDING_PATH}
"""Labels in a table of memory by line that are no lines."""
_OUTSIDE, _ROOT = -1, -2


@dataclass(frozen=True)
class ModuleNode:
    """One module: its own bytes by category, and the total including its descendants. Children are largest first."""

    path: str
    class_name: str
    self_bytes: int
    total_bytes: int
    by_category: dict[str, int]
    children: tuple[ModuleNode, ...]


def module_tree(rank: Rank, instant: Instant) -> ModuleNode:
    """Return the root of the modules with live memory at ``instant``. Its total is the allocated bytes.

    The root's path is "". Besides outermost modules it has the children ``(outside modules)`` and ``(rounding)``.
    Modules without bytes, including their descendants, are left out.

    Source: caching allocator's history, exact.
    """
    lives = read_lives(rank, instant.device_idx)
    live = lives.allocated_at(instant.index)
    requested = lives.requested_bytes[live]
    own = _own_bytes(rank, instant.device_idx, live, requested)
    rounded = int(lives.allocated_bytes[live].sum() - requested.sum())
    nodes = _Nodes(rank)
    children = nodes.build(own)
    if _OUTSIDE in own:
        children.append(_leaf(OUTSIDE_PATH, own[_OUTSIDE]))
    if rounded:
        children.append(_leaf(ROUNDING_PATH, {ROUNDING: rounded}))
    return ModuleNode("", "", 0, sum(child.total_bytes for child in children), {}, _ordered(children))


def _own_bytes(rank: Rank, device_idx: int, live: NDArray[np.bool_], sizes: I64) -> dict[int, dict[str, int]]:
    """Return ``module_id -> category -> bytes``; :data:`_OUTSIDE` for blocks outside modules."""
    ids = read_numbers(rank, "blocks", "module_id", device_idx, _OUTSIDE)[live]
    codes, labels = coded_categories(rank, device_idx)
    keys, place = distinct(ids * len(labels) + codes[live])
    total = np.zeros(keys.size, dtype=np.int64)
    np.add.at(total, place, sizes)
    own: dict[int, dict[str, int]] = {}
    for key, size in zip(keys.tolist(), total.tolist(), strict=True):
        module_id, code = divmod(key, len(labels))
        category = own.setdefault(module_id, {})
        category[labels[code]] = category.get(labels[code], 0) + size
    return own


def _leaf(path: str, by_category: dict[str, int]) -> ModuleNode:
    size = sum(by_category.values())
    return ModuleNode(path, "", size, size, by_category, ())


def _ordered(nodes: list[ModuleNode]) -> tuple[ModuleNode, ...]:
    return tuple(sorted(nodes, key=lambda node: (-node.total_bytes, node.path)))


class _Nodes:
    """Builds nodes from the leaves up, so that deep models cause no recursion."""

    def __init__(self, rank: Rank) -> None:
        table = rank.table("modules", ("module_id", "parent_id", "path", "class_name"))
        rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
        self.facts = {number: (parent, path, class_name) for number, parent, path, class_name in rows}
        self.steps_up: dict[int, int] = {}

    def build(self, own: dict[int, dict[str, int]]) -> list[ModuleNode]:
        """Return the outermost modules with live memory."""
        waiting: dict[int, list[ModuleNode]] = {_ROOT: []}
        for number in reversed(self._parents_first(own)):
            parent, path, class_name = self._of(number)
            by_category, children = own.get(number, {}), _ordered(waiting.pop(number, []))
            size = sum(by_category.values())
            total = size + sum(child.total_bytes for child in children)
            node = ModuleNode(path, class_name, size, total, by_category, children)
            waiting.setdefault(parent, []).append(node)
        return waiting[_ROOT]

    def _of(self, number: int) -> tuple[int, str, str]:
        """Return parent, path and class. A parent that is not connected to the root is replaced by the root."""
        parent, path, class_name = self.facts.get(number, (None, f"(module {number})", ""))
        return parent if parent in self.facts and self.steps_up[number] else _ROOT, path, class_name

    def _parents_first(self, own: dict[int, dict[str, int]]) -> list[int]:
        """Return the modules with live memory and their ancestors, each after its parent."""
        for number in own:
            if number != _OUTSIDE:
                self._measure(number)
        return sorted(self.steps_up, key=lambda number: (self.steps_up[number], number))

    def _measure(self, number: int) -> None:
        """Compute the distance of ``number`` and its ancestors from the root. A cycle (a damaged table) is cut."""
        chain: list[int] = []
        seen: set[int] = set()
        at: int | None = number
        while at is not None and at not in self.steps_up and at not in seen:
            chain.append(at)
            seen.add(at)
            parent = self.facts.get(at, (None, "", ""))[0]
            at = parent if parent in self.facts else None
        depth = self.steps_up[at] + 1 if at is not None and at in self.steps_up else 0
        for place, member in enumerate(reversed(chain)):
            self.steps_up[member] = depth + place
