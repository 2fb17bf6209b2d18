"""Buffers of DistributedDataParallel: allocated inside C++, so only the moment tells what they are for.

Buckets are made when a model is wrapped, and once more at the second forward, in the order the gradients came. Both
moments pass through Python; while they last, the thread's allocations carry a flag.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from gpuledger.collect.guard import forget_frames
from gpuledger.collect.phases import OUTSIDE, Phases
from gpuledger.model.journal import TagFlag


def collectives_backend() -> str | None:
    """Return what carries the program's collectives, such as ``nccl``; None where no process group was set up."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return str(distributed.get_backend())


class CommunicationMarks:
    """Flags what is allocated while buckets are made, between :meth:`install` and :meth:`remove`."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """Wrap both entrances; does nothing in a torch without ``torch.distributed``."""
        if not distributed.is_available():
            return
        reducer = distributed.Reducer  # type: ignore[attr-defined]  # it is there wherever torch.distributed is
        for place, name in ((DistributedDataParallel, "_ddp_init_helper"), (reducer, "_rebuild_buckets")):
            theirs = getattr(place, name, None)
            if theirs is not None:
                ours = self._wrapped(theirs)
                self._replaced.append((place, name, ours, theirs))
                setattr(place, name, ours)

    def remove(self) -> None:
        """Take the wrappers out, but for one that somebody else has wrapped in turn."""
        for place, name, ours, theirs in self._replaced:
            if getattr(place, name) is ours:
                setattr(place, name, theirs)
        self._replaced.clear()

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        phases = self._phases

        @functools.wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            state = phases.threads
            before = state.token
            phases.put(state.stack[-1][0] if state.stack else OUTSIDE, int(TagFlag.COMMUNICATION))
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                forget_frames(error)
                raise
            finally:
                phases.restore(before)

        return marked
