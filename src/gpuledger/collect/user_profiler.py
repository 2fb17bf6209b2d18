"""Notices a profiler of the program's own: it goes first, while it waits and warms up as well."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.autograd import profiler as autograd_profiler
from torch.autograd import profiler_legacy
from torch.profiler import profiler as kineto_profiler

from gpuledger.collect.guard import forget_frames

WATCHED = (
    autograd_profiler.profile,
    autograd_profiler.emit_nvtx,
    autograd_profiler.emit_itt,
    profiler_legacy.profile,
    kineto_profiler._KinetoProfile,
    kineto_profiler.ExecutionTraceObserver,
)
"""What a program profiles itself with; all but the last can only be on one at a time, and that one would see ours."""


class UserProfiler:
    """Calls ``made()`` when the program makes a profiler, until it is removed.

    ``seen`` says whether it has made one. What is made between :meth:`ours_begins` and :meth:`ours_ends` is our own.
    """

    def __init__(self, made: Callable[[], None]) -> None:
        self.seen = False
        self._made = made
        self._ours = False
        self._replaced: list[tuple[Any, Any, Any]] = []
        for place in WATCHED:
            theirs = place.__init__
            watched = self._watched(theirs)
            self._replaced.append((place, watched, theirs))
            place.__init__ = watched  # type: ignore[method-assign]

    def remove(self) -> None:
        """Put the profilers' own functions back, but for one that somebody else has replaced."""
        for place, watched, theirs in self._replaced:
            if place.__init__ is watched:
                place.__init__ = theirs
        self._replaced.clear()

    def ours_begins(self) -> None:
        """The next profiler is our own."""
        self._ours = True

    def ours_ends(self) -> None:
        """Every further profiler is the program's."""
        self._ours = False

    def _watched(self, original: Callable[..., None]) -> Callable[..., None]:
        watch = self

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it stands in for one
            if not watch._ours:
                watch.seen = True
                watch._made()
            try:
                original(self, *args, **kwargs)
            except BaseException as error:
                forget_frames(error)
                raise

        return __init__
