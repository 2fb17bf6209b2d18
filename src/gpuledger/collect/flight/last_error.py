"""Exceptions that say that memory could not be allocated: those that the program can handle, and the last one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, remove_all
from gpuledger.collect.adapter.observer import fails_only
from gpuledger.collect.flight.host_failures import facts_of, find_host_failure
from gpuledger.collect.flight.library_failures import (
    find_gpu_failure,
    find_library_failure,
    last_error,
    linked,
    text_of,
)


class MemoryErrors:
    """Finds such exceptions. Keeps none of them: it would keep what the program's frames refer to.

    After the recorded steps and in compiled code, no operator is seen. There, an exception is found when it leaves a
    module, backward, or a block that PyTorch times, such as the step of an optimizer. No code of ours runs in these
    while nothing is raised.

    Args:
        happened: Called with the facts of each.
        step: Returns the number of steps that have ended.
        ended: Called with text and traceback of the error of PyTorch's own allocator that ends the program.
    """

    def __init__(
        self,
        happened: Callable[[dict[str, Any]], None],
        step: Callable[[], int],
        ended: Callable[[str, TracebackType | None], None],
    ) -> None:
        self.recorded: list[dict[str, Any]] = []
        """The facts of all memory errors, if there is no flight recorder."""
        self._happened, self._step, self._ended = happened, step, ended
        self._newest: dict[int, tuple[int, int, int]] = {}
        """Thread -> its last exception by ``id``, its step, and the number of frames up to the outermost one."""
        self._seen = 0
        """Number of exceptions that the program can handle."""
        self._observations: list[Observation] = []

    def install(self, guard: Guard) -> None:
        """Look at exceptions that leave PyTorch's functions from now on. Nothing is recorded in forked children.

        Blocks that PyTorch times are left out if the program has replaced the function at their end.

        Raises:
            CannotInstrumentError: the other functions are not those of a supported torch.
        """
        for function in (torch_entrances.module_call(), torch_entrances.backward(), torch_entrances.grad()):
            self._observations.append(Observation(function, fails_only(self.see, guard.absorbs)))
        ends = fails_only(self._block_ends, guard.absorbs)
        with suppress(CannotInstrumentError):
            self._observations.append(Observation(torch_entrances.end_of_timed(), ends))

    def remove(self) -> None:
        """Look at no more exceptions but the last one."""
        remove_all(self._observations)

    def see(self, error: BaseException) -> None:
        """Record an exception if the host could not allocate memory. The program can handle it.

        Called where an operator raises it, and again at each function of PyTorch that it leaves.
        """
        self._see(error, fewer=1)

    def _block_ends(self, error: BaseException) -> None:
        """Record the exception that ends a block which PyTorch times. One frame can have several blocks."""
        self._see(error, fewer=0)

    def _see(self, error: BaseException, fewer: int) -> None:
        """Record an exception unless it was seen before. Another one can have its ``id`` when it is gone.

        Args:
            error: The exception.
            fewer: How many frames it must have left since then, at least.
        """
        thread, seen = threading.get_ident(), (id(error), self._step())
        before = self._newest.get(thread)
        if before is not None and before[:2] == seen and (depth := _depth(error.__traceback__)) <= before[2] - fewer:
            self._newest[thread] = (*seen, depth)
            return
        facts = facts_of(error)
        if facts is not None:
            self._newest[thread] = (*seen, _depth(error.__traceback__))
            self._seen += 1
            self._happened({**facts, "traceback": error.__traceback__})

    def see_last(self) -> None:
        """Record the exception that ends the recording if a library or the host could not allocate memory."""
        error = last_error()
        newest = [seen[:2] for seen in self._newest.copy().values()]
        was_seen = any((id(one), self._step()) in newest for one in linked(error))
        if was_seen and self._seen == 1:
            return
        facts = find_library_failure(error) or find_host_failure(error)
        of_gpu = find_gpu_failure(error)
        if facts is not None:
            self._happened({**facts, **({"was_counted": True} if was_seen else {})})
        elif of_gpu is not None:
            self._ended(text_of(of_gpu), of_gpu.__traceback__)


def _depth(place: TracebackType | None) -> int:
    """Return the number of frames from the bottom of the stack to the outermost one of a traceback."""
    depth, frame = 0, None if place is None else place.tb_frame
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth
