"""Ranges in the profile: of module calls, backward passes and optimizer steps, each in its thread."""

from __future__ import annotations

import threading
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import PHASE_RANGE


class CallRanges:
    """Opens and closes ranges. A range belongs to the thread that has opened it."""

    def __init__(self) -> None:
        self._optimizer_ranges: dict[int, list[Any]] = {}
        """Ranges of optimizer steps in progress, by thread."""
        self._ranges: list[tuple[int, list[Any]]] = []
        """Thread and range of every call, in order.

        The inner list with the range is emptied when the call ends.
        """
        self._outermost: list[list[Any]] = []
        """Ranges of the calls of outermost modules."""

    def opened(self, name: str, *, is_outermost: bool = False) -> list[Any]:
        """Return a list with a range that has just been opened. The list is emptied when the range ends.

        Args:
            name: The name of the range.
            is_outermost: Whether it is of a call of an outermost module.
        """
        opened = torch_private.open_range(name)
        opened.__enter__()
        held = [opened]
        self._ranges.append((threading.get_ident(), held))
        if is_outermost:
            self._outermost.append(held)
        return held

    @property
    def has_whole_call(self) -> bool:
        """Return whether a call of an outermost module has begun and ended."""
        return any(not held for held in self._outermost)

    @staticmethod
    def leave(opened: list[Any], _result: Any) -> None:
        """Close a range, once."""
        if opened:
            opened.pop().__exit__(None, None, None)

    @staticmethod
    def fail(opened: list[Any]) -> None:
        """Close the range of a call that raised."""
        CallRanges.leave(opened, None)

    def enter_optimizer(self) -> None:
        """Open the range of an optimizer step."""
        opened = torch_private.open_range(f"{PHASE_RANGE}{int(Phase.OPTIMIZER)}")
        opened.__enter__()
        self._optimizer_ranges.setdefault(threading.get_ident(), []).append(opened)

    def leave_optimizer(self) -> None:
        """Close the range of an optimizer step. Those of other threads can be in progress at the same time."""
        opened = self._optimizer_ranges.get(threading.get_ident())
        if opened:
            opened.pop().__exit__(None, None, None)

    def leave_optimizers(self) -> None:
        """Close the ranges of all optimizer steps in progress in this thread."""
        while self._optimizer_ranges.get(threading.get_ident()):
            self.leave_optimizer()

    def end_all(self) -> None:
        """Close the ranges of calls in progress in this thread. Kineto prints warnings about open ranges."""
        self._optimizer_ranges.clear()
        self._outermost.clear()
        thread = threading.get_ident()
        while self._ranges:
            made_in, held = self._ranges.pop()
            if made_in == thread:
                self.leave(held, None)
