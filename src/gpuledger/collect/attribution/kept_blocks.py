"""Blocks that the recorded steps left allocated: which of them the program frees later."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

MOST = 4096
"""Maximum number of blocks. A training has three for each parameter, and the rest is little."""


class KeptBlocks:
    """Blocks that were alive when the recording ended.

    Args:
        blocks: A weak reference to each storage, and its address.
        freed: Gets the references of the storages that end, in their order.
    """

    def __init__(self, blocks: Sequence[tuple[weakref.ref[Any], int]], freed: deque[Any]) -> None:
        self._blocks = blocks if len(blocks) <= MOST else ()
        self._freed = freed
        self._step = self._freed_by_then = 0
        self._hidden: list[int] = []
        self._counts: list[tuple[int, int]] = []

    def step_ended(self, step: int) -> None:
        """Remember how many are freed at the end of a step. Takes no time: a program frees its variables at its end."""
        self._step, self._freed_by_then = step, len(self._freed)

    def is_counted_at(self, step: int) -> bool:
        """Return whether tensors are counted at the end of a step: after the recorded ones, and some steps later."""
        return bool(self._blocks) and (not self._counts or (len(self._counts) == 1 and step >= self._counts[0][0] + 4))

    @property
    def needs_addresses(self) -> bool:
        """Return whether it is still to be found out which of the blocks Python can reach."""
        return not self._counts

    def reached(self, addresses: set[int]) -> None:
        """Remember which of the blocks are none of the storages, with these addresses, of tensors in Python."""
        self._hidden = [address for _, address in self._blocks if address not in addresses]

    def tensors_counted(self, step: int, tensors: int) -> None:
        """Remember a number that becomes larger by one with each live tensor, at the end of a step."""
        self._counts.append((step, tensors))

    def as_fact(self) -> dict[str, Any] | None:
        """Return the last step and the addresses of the blocks that were alive at its end; None if unknown."""
        if not (self._step and self._blocks):
            return None
        freed = {id(one) for one in list(self._freed)[: self._freed_by_then]}
        alive = [address for reference, address in self._blocks if id(reference) not in freed]
        return {"step": self._step, "addresses": alive, "hidden": self._hidden, "counts": self._counts}
