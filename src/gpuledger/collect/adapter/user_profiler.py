"""Notices a profiler of the program's own: it goes first, while it waits and warms up as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.autograd import profiler as autograd_profiler
from torch.autograd import profiler_legacy
from torch.profiler import profiler as kineto_profiler

from gpuledger.collect.adapter.instrument import Absorbs, Observation, Observer, remove_all
from gpuledger.collect.adapter.torch_entrances import torchs_own

WATCHED: tuple[type, ...] = (
    autograd_profiler.profile,
    autograd_profiler.emit_nvtx,
    autograd_profiler.emit_itt,
    profiler_legacy.profile,
    kineto_profiler._KinetoProfile,
    kineto_profiler.ExecutionTraceObserver,
)
"""What a program profiles itself with; all but the last can only be on one at a time, and that one would see ours."""


class ProfilerStart:
    """Calls ``started()`` when a profiler begins to record, until it is removed.

    Where operators pass through the dispatch-mode recorder, a profiler would count them twice.
    """

    def __init__(self, started: Callable[[], None]) -> None:
        function = torchs_own(autograd_profiler.profile._start_trace)
        self._observation = Observation(function, Observer(lambda *_: started()))

    def remove(self) -> None:
        """Stop looking."""
        self._observation.remove()


class UserProfiler:
    """Calls ``made()`` when the program makes a profiler, between :meth:`install` and :meth:`remove`.

    ``seen`` says whether it has made one. What is made between :meth:`ours_begins` and :meth:`ours_ends` is our own.
    """

    def __init__(self, made: Callable[[], None], absorbs: Absorbs) -> None:
        self.seen = False
        self._made = made
        self._absorbs = absorbs
        self._ours = False
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Begin to look.

        Raises:
            CannotInstrumentError: a profiler is not that of a torch that is known.
        """
        observer = Observer(self._entered, absorbs=self._absorbs)
        for place in WATCHED:
            self._observations.append(Observation(torchs_own(vars(place)["__init__"]), observer))

    def remove(self) -> None:
        """Stop looking."""
        remove_all(self._observations)

    def ours_begins(self) -> None:
        """The next profiler is our own."""
        self._ours = True

    def ours_ends(self) -> None:
        """Every further profiler is the program's."""
        self._ours = False

    def _entered(self, *_: Any) -> None:
        if not self._ours:
            self.seen = True
            self._made()
