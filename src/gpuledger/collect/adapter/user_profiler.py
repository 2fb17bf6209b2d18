"""Detect a profiler that the program starts itself. It has priority, also while it waits and warms up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import profiler as autograd_profiler
from torch.autograd import profiler_legacy
from torch.profiler import profiler as kineto_profiler

from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Absorbs, Observer
from gpuledger.collect.adapter.torch_entrances import torchs_own

WATCHED: tuple[type, ...] = (
    autograd_profiler.profile,
    autograd_profiler.emit_nvtx,
    autograd_profiler.emit_itt,
    profiler_legacy.profile,
    kineto_profiler._KinetoProfile,
    kineto_profiler.ExecutionTraceObserver,
)
"""Profilers that a program can use. Only one can run at a time, except for the last one, which would record ours."""


class ProfilerStart:
    """Calls ``started()`` when a profiler begins to record, between :meth:`install` and :meth:`remove`.

    If operators pass through the dispatch-mode recorder, a profiler would count them twice.
    """

    def __init__(self, started: Callable[[], None]) -> None:
        self._started = started
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Start detecting.

        Raises:
            CannotInstrumentError: a profiler's code is not that of a supported torch.
        """
        observer = Observer(lambda *_: self._started())
        for function in (autograd_profiler.profile._start_trace, kineto_profiler.ExecutionTraceObserver.start):
            self._observations.append(Observation(torchs_own(function), observer))

    def remove(self) -> None:
        """Stop detecting."""
        remove_all(self._observations)


class UserProfiler:
    """Calls ``made()`` when the program creates a profiler, between :meth:`install` and :meth:`remove`.

    ``seen`` is True once it has created one. Profilers created inside :meth:`ours` are gpuledger's own.
    """

    def __init__(self, made: Callable[[], None], absorbs: Absorbs) -> None:
        self.seen = False
        self._made = made
        self._absorbs = absorbs
        self._ours = False
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Start detecting.

        Raises:
            CannotInstrumentError: a profiler's code is not that of a supported torch.
        """
        observer = Observer(self._entered, absorbs=self._absorbs)
        for place in WATCHED:
            self._observations.append(Observation(torchs_own(vars(place)["__init__"]), observer))

    def remove(self) -> None:
        """Stop detecting."""
        remove_all(self._observations)

    @contextmanager
    def ours(self, undo: Callable[[], object]) -> Iterator[None]:
        """Treat profilers that are created inside the ``with`` block as gpuledger's own.

        Args:
            undo: Called if the block raises. A signal handler of the program can raise there.
        """
        self._ours = True
        try:
            yield
        except BaseException:
            undo()
            raise
        finally:
            self._ours = False

    def _entered(self, *_: Any) -> None:
        if not self._ours:
            self.seen = True
            self._made()
