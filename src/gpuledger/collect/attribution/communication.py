"""Communication buffers of DistributedDataParallel.

They are allocated in C++, so only the time of the allocation identifies them. Buckets are allocated when a model is
wrapped, and again in the second forward, in the order in which the gradients became ready. Python code runs at both
times; during it, the thread's allocations carry a flag, and the module that is called or wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gpuledger.collect.adapter.guard import Guard, forget_own_frames
from gpuledger.collect.adapter.instrument import Observation
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.torch_entrances import torchs_own
from gpuledger.collect.attribution.phases import OUTSIDE, Phases
from gpuledger.model.journal.journal import TagFlag

_REBUILD = "_rebuild_buckets"


def collectives_backend() -> str | None:
    """Return the backend of the program's collectives, such as ``nccl``; None if no process group was initialized."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return str(distributed.get_backend())


class CommunicationMarks:
    """Flags allocations made while buckets are built, between :meth:`install` and :meth:`remove`.

    Args:
        phases: The tokens of each thread.
        guard: Handles exceptions of gpuledger's code.
        register: Returns the id of an outermost module.
    """

    def __init__(self, phases: Phases, guard: Guard, register: Callable[[nn.Module], int]) -> None:
        self._phases = phases
        self._guard = guard
        self._register = register
        self._observation: Observation | None = None
        self._replaced: tuple[Any, Any] | None = None

    def install(self) -> None:
        """Observe both functions. Does nothing in a torch without ``torch.distributed``.

        Raises:
            CannotInstrumentError: the functions are not those of a supported torch.
        """
        if not distributed.is_available():
            return
        helper = torchs_own(DistributedDataParallel._ddp_init_helper)
        self._observation = Observation(
            helper, Observer(self._enter, self._leave, self._fail, absorbs=self._guard.absorbs)
        )
        reducer = distributed.Reducer  # type: ignore[attr-defined]  # it is there wherever torch.distributed is
        theirs = reducer._rebuild_buckets
        ours = self._wrapped(theirs)
        self._replaced = (ours, theirs)
        setattr(reducer, _REBUILD, ours)  # written in C++, so it has no code object to replace

    def remove(self) -> None:
        """Stop observing. Leaves a wrapper in place if other code has wrapped it in turn."""
        if self._observation is not None:
            self._observation.remove()
            self._observation = None
        if self._replaced is not None:
            ours, theirs = self._replaced
            reducer = distributed.Reducer  # type: ignore[attr-defined]
            if reducer._rebuild_buckets is ours:
                setattr(reducer, _REBUILD, theirs)
            self._replaced = None

    def _enter(self, *arguments: Any) -> tuple[str] | None:
        """Flag this thread's allocations. Return the token to restore afterwards.

        The first argument, if there is one, is the model that is wrapped. It was not called yet.
        """
        try:
            state = self._phases.threads
            before = state.token
            module_id = state.stack[-1][0] if state.stack else OUTSIDE
            if arguments and not state.stack:
                module_id = self._register(arguments[0])
            self._phases.put(module_id, int(TagFlag.COMMUNICATION))
            return (before,)
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise
            return None

    def _leave(self, before: tuple[str], _result: Any) -> None:
        try:
            self._phases.restore(before[0])
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise

    def _fail(self, before: tuple[str]) -> None:
        self._leave(before, None)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        marks = self

        @functools.wraps(original)
        def marked(*args: Any, **kwargs: Any) -> Any:
            before = marks._enter()
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                forget_own_frames(error)
                raise
            finally:
                if before is not None:
                    marks._leave(before, None)

        return marked
