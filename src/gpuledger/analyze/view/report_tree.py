"""The modules in a report: one list, parents before their children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.account_series import OUTSIDE
from gpuledger.analyze.memory.tree import OUTSIDE_PATH, ROUNDING_PATH

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = 0
IDLE_PATH = "(idle)"


@dataclass(frozen=True)
class Module:
    """One module: ``parent_id`` is None for an outermost one."""

    module_id: int
    parent_id: int | None
    path: str
    class_name: str


@dataclass(frozen=True)
class ReportTree:
    """Nodes, parents first. Node 0 is the device; the last three are not modules (outside, idle, rounding).

    ``node_of`` is ``module_id -> node``; :data:`~gpuledger.analyze.memory.account_series.OUTSIDE` is in it.
    """

    path: tuple[str, ...]
    class_name: tuple[str, ...]
    parent: tuple[int, ...]
    node_of: dict[int, int]

    @property
    def outside(self) -> int:
        """Return the node of memory and work outside modules."""
        return len(self.path) - 3

    @property
    def idle(self) -> int:
        """Return the node of a step's idle time."""
        return len(self.path) - 2

    @property
    def rounding(self) -> int:
        """Return the node of rounding."""
        return len(self.path) - 1


def build_tree(modules: tuple[Module, ...], owners: Iterable[int]) -> ReportTree:
    """Return the tree of those ``modules`` that are in ``owners`` (module ids), and of their ancestors.

    An owner without a row is named by its id. A row with missing or cyclic parents is placed below the device.
    """
    known = {module.module_id: module for module in modules}
    path, class_name, parent = [""], [""], [-1]
    node_of: dict[int, int] = {}
    for owner in sorted(set(owners) - {OUTSIDE}):
        above = ROOT
        for module_id in _way_down(known, owner):
            if module_id not in node_of:
                node_of[module_id] = len(path)
                described = known.get(module_id)
                path.append(described.path if described else f"(module {module_id})")
                class_name.append(described.class_name if described else "")
                parent.append(above)
            above = node_of[module_id]
    node_of[OUTSIDE] = len(path)
    return ReportTree(
        path=(*path, OUTSIDE_PATH, IDLE_PATH, ROUNDING_PATH),
        class_name=(*class_name, "", "", ""),
        parent=(*parent, ROOT, ROOT, ROOT),
        node_of=node_of,
    )


def _way_down(known: dict[int, Module], module_id: int) -> list[int]:
    """Return the modules from an outermost one down to ``module_id``. A cycle is cut."""
    way = [module_id]
    while (described := known.get(way[-1])) is not None:
        above = described.parent_id
        if above is None or above not in known or above in way:
            break
        way.append(above)
    return way[::-1]
