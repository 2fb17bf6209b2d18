"""Owners of blocks with Python stacks of their own: those of the recorded steps' blocks of the same source line.

The step of such a block need not look like a recorded one, as with an evaluation after some of the steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from gpuledger.model.accounts import CATEGORIES, Phase
from gpuledger.model.source_files import is_framework

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuledger.analyze.posting.device import DeviceHistory
    from gpuledger.model.journal.reading import Journal

Line: TypeAlias = tuple[str, int]
_SHORT_LIVED = frozenset(map(CATEGORIES.index, ("temporary", "workspace")))


class Owner(NamedTuple):
    """Category, module and phase of a block; -1 where not known."""

    category: int = -1
    module_id: int = -1
    phase: int = -1


UNKNOWN = Owner()


class Lines:
    """The source line of each stack: that of the innermost frame outside PyTorch and Python's standard library."""

    def __init__(self, journal: Journal) -> None:
        self._of_stack = [
            next(((file, line) for file, line, function in stack if not is_framework(file, function)), None)
            for stack in journal.stacks
        ]

    def of(self, stack: int) -> Line | None:
        """Return the line of a stack; None if it has none."""
        return self._of_stack[stack] if 0 <= stack < len(self._of_stack) else None

    def agree(self, one: int, other: int) -> bool | None:
        """Return whether two stacks have the same line; None if one of them has none."""
        lines = self.of(one), self.of(other)
        return None if None in lines else lines[0] == lines[1]


class LineOwners:
    """Owners of the blocks that the recorded steps allocated, by line and size.

    Backward is left out: autograd's threads have no stacks of their own, and the lines of its blocks are those of the
    forward.
    """

    def __init__(self, history: DeviceHistory, lines: Lines) -> None:
        self._of: dict[Line, dict[int, set[Owner]]] = {}
        owners = history.owners
        mine = np.flatnonzero((owners.step >= 1) & (owners.stack_id >= 0) & (owners.phase != Phase.BACKWARD))
        columns = (owners.stack_id, history.lives.requested_bytes, owners.category, owners.module_id, owners.phase)
        rows = np.unique(np.stack([column[mine].astype(np.int64) for column in columns]), axis=1)
        for stack, size, *owner in rows.T.tolist():
            line = lines.of(stack)
            if line is not None:
                self._of.setdefault(line, {}).setdefault(size, set()).add(Owner(*owner))

    def of(self, line: Line | None, size: int, *, outlived: bool) -> Owner:
        """Return what all blocks of a line have in common: those of this size, or all if there are none.

        Args:
            line: The line.
            size: The requested bytes of the block.
            outlived: Whether the block has outlived its step, so that it is not temporary.
        """
        sizes = {} if line is None else self._of.get(line, {})
        found = sizes.get(size) or set().union(*sizes.values())
        kept = {one for one in found if not (outlived and one.category in _SHORT_LIVED)}
        return common_to(kept) if kept else common_to(found)._replace(category=-1)


def common_to(owners: Iterable[Owner]) -> Owner:
    """Return what owners have in common."""
    columns: Sequence[set[int]] = [set(column) for column in zip(*owners, strict=True)]
    return Owner(*(column.pop() if len(column) == 1 else -1 for column in columns))
