"""Functions that build buffers of sharded training: allocations during a call carry its module and a flag."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.torch_entrances import torchs_own
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.tensor_observations import TensorObservations


@dataclass(frozen=True)
class ShardingContext:
    """What observers of sharded training write to.

    Args:
        phases: The tokens of each thread.
        registry: Ids of modules.
        observed: Records the addresses of tensors.
        resized: Called with tensors that got or lost their memory without an operator.
        guard: Handles exceptions of gpuledger's code.
        note: Called with a sentence for the user.
    """

    phases: Phases
    registry: ModuleRegistry
    observed: TensorObservations
    resized: Callable[[Iterable[object]], None]
    guard: Guard
    note: Callable[[str], None]


_Call = tuple[str, Any]
"""A call in progress: the token to restore, and the group of parameters."""


def nothing(_group: Any) -> None:
    """Record nothing."""


def never(_group: Any) -> bool:
    """Return False."""
    return False


class MarkedCalls:
    """Observes functions in place, until :meth:`remove`.

    Args:
        context: The tokens of each thread, and the guard.
        module_of: Returns the module id of a group of parameters.
        own: Returns the function to observe from inside wrappers around it, or raises ``CannotInstrumentError``.
    """

    def __init__(
        self,
        context: ShardingContext,
        module_of: Callable[[Any], int],
        own: Callable[[Callable[..., Any]], Callable[..., Any]] = torchs_own,
    ) -> None:
        self._phases, self._guard, self._module_of, self._own = context.phases, context.guard, module_of, own
        self._observations: list[Observation] = []

    def remove(self) -> None:
        """Stop observing."""
        remove_all(self._observations)

    def mark(
        self,
        function: Callable[..., Any],
        flag: int,
        before: Callable[[Any], None] = nothing,
        after: Callable[[Any], None] = nothing,
        place: int = 0,
        does_nothing: Callable[[Any], bool] = never,
    ) -> None:
        """Flag the allocations of a function whose argument at ``place`` is a group of parameters.

        Calls for which ``does_nothing`` returns True are left out.

        Raises:
            CannotInstrumentError: it cannot be observed.
        """

        def enter(*arguments: Any) -> _Call | None:
            group = arguments[place]
            if does_nothing(group):
                return None
            token = self._phases.threads.token
            before(group)
            self._phases.put(self._module_of(group), flag)
            return token, group

        def leave(call: _Call, _result: Any) -> None:
            self._phases.restore(call[0])
            after(call[1])

        def fail(call: _Call) -> None:
            self._phases.restore(call[0])

        self._observe(function, Observer(enter, leave, fail, absorbs=self._guard.absorbs))

    def call_before(self, function: Callable[..., Any], before: Callable[[Any], None]) -> None:
        """Call ``before`` with the first argument of a function at the beginning of each call.

        Raises:
            CannotInstrumentError: it cannot be observed.
        """
        ignored: Callable[..., None] = lambda *_: None  # noqa: E731
        self._observe(
            function, Observer(lambda *given: before(given[0]), ignored, ignored, absorbs=self._guard.absorbs)
        )

    def call_after(self, function: Callable[..., Any], after: Callable[[Any, Any], None]) -> None:
        """Call ``after`` with the first argument of a function and its result at the end of each call.

        Raises:
            CannotInstrumentError: it cannot be observed.
        """

        def leave(first: tuple[Any], result: Any) -> None:
            after(first[0], result)

        self._observe(
            function,
            Observer(lambda *given: given[:1], leave, lambda _: None, absorbs=self._guard.absorbs),
        )

    def _observe(self, function: Callable[..., Any], observer: Observer) -> None:
        self._observations.append(Observation(self._own(function), observer))
