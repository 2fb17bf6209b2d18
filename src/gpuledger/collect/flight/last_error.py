"""Exceptions that say that memory could not be allocated: those that the program can handle, and the last one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gpuledger.collect.adapter import torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer, fails_only
from gpuledger.collect.flight.host_failures import facts_of, find_host_failure
from gpuledger.collect.flight.library_failures import find_library_failure, last_error, linked


class MemoryErrors:
    """Finds such exceptions. Keeps none of them: it would keep what the program's frames refer to.

    After the recorded steps and in compiled code, no operator is seen. There, an exception is found when it leaves a
    module, backward, or a function that PyTorch times, such as the step of an optimizer, or when the program calls such
    a function while it handles the exception. In a call without an exception, this takes no time in modules.

    Args:
        happened: Called with the facts of each.
        step: Returns the number of steps that have ended.
    """

    def __init__(self, happened: Callable[[dict[str, Any]], None], step: Callable[[], int]) -> None:
        self.recorded: list[dict[str, Any]] = []
        """The facts of all memory errors, if there is no flight recorder."""
        self._happened, self._step = happened, step
        self._last_seen: tuple[int, int, int] | None = None
        """The last exception by ``id``, its step, and the thread that raised it."""
        self._seen = 0
        """Number of exceptions that the program can handle."""
        self._depth = 0
        """Number of frames up to the outermost one that it had reached."""
        self._handled: dict[int, set[int]] = {}
        """Exceptions by ``id`` that a thread can still be handling: it has ended no timed function outside of that."""
        self._observations: list[Observation] = []

    def install(self, guard: Guard) -> None:
        """Look at exceptions that leave PyTorch's functions from now on. Nothing is recorded in forked children.

        Raises:
            CannotInstrumentError: they are not those of a supported torch.
        """
        for function in (torch_entrances.module_call(), torch_entrances.backward(), torch_entrances.grad()):
            self._observations.append(Observation(function, fails_only(self.see, guard.absorbs)))
        ends = Observer(self._timed_function_ends, absorbs=guard.absorbs)
        self._observations.append(Observation(torch_entrances.end_of_timed(), ends))

    def remove(self) -> None:
        """Look at no more exceptions but the last one."""
        remove_all(self._observations)

    def see(self, error: BaseException) -> None:
        """Record an exception if the host could not allocate memory. The program can handle it.

        Called where an operator raises it, and again at each function of PyTorch that it leaves.
        """
        self._see(error, is_same=lambda depth: depth < self._depth)

    def _timed_function_ends(self, _: Any, _kind: Any, error: BaseException | None, *_rest: Any) -> None:
        """Record the exception that ends a function which PyTorch times, or the one that the program is handling."""
        if error is not None:
            self._see(error, is_same=lambda depth: depth <= self._depth)  # one frame can have several
            return
        handled = sys.exception()
        if handled is None:
            self._handled.pop(threading.get_ident(), None)
        elif id(handled) not in self._handled.get(threading.get_ident(), ()):
            self.see(handled)

    def _see(self, error: BaseException, is_same: Callable[[int], bool]) -> None:
        """Record an exception unless it was seen before. Another one can have its ``id`` when it is gone.

        Args:
            error: The exception.
            is_same: Returns whether it is the one with its ``id`` that was seen last, by the number of frames below the
                outermost one that it has reached. As it goes on to the callers, these become fewer.
        """
        facts = facts_of(error)
        if facts is None:
            return
        key, depth = (id(error), self._step(), threading.get_ident()), _depth(error.__traceback__)
        is_known = key == self._last_seen and is_same(depth)
        self._last_seen, self._depth = key, depth
        self._handled.setdefault(threading.get_ident(), set()).add(id(error))
        if not is_known:
            self._seen += 1
            self._happened({**facts, "traceback": error.__traceback__})

    def see_last(self) -> None:
        """Record the exception that ends the recording if a library or the host could not allocate memory."""
        error = last_error()
        was_seen = self._last_seen is not None and any(id(one) == self._last_seen[0] for one in linked(error))
        if was_seen and self._seen == 1:
            return
        facts = find_library_failure(error) or find_host_failure(error)
        if facts is not None:
            self._happened({**facts, **({"was_counted": True} if was_seen else {})})


def _depth(place: TracebackType | None) -> int:
    """Return the number of frames from the bottom of the stack to the outermost one of a traceback."""
    depth, frame = 0, None if place is None else place.tb_frame
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth
