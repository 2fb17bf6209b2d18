"""The observer of module calls outside the memory recording: for steps that are calls, and for the first call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.adapter.calls import CallObserver, OutermostCalls
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.steps.named_calls import NamedCalls
from gpuledger.collect.steps.step_counter import StepCounter

if TYPE_CHECKING:
    import torch

    from gpuledger.collect.memory.window import MemoryWindow


class WatchedCalls:
    """Installs and removes the observer of calls. There is at most one.

    Args:
        steps: The step counter.
        registry: Ids of modules.
        guard: Wraps callbacks from the program.
        window: Returns the memory recording; None before a recorder was selected.
    """

    def __init__(
        self, steps: StepCounter, registry: ModuleRegistry, guard: Guard, window: Callable[[], MemoryWindow | None]
    ) -> None:
        self._steps = steps
        self._registry = registry
        self._guard = guard
        self._window = window
        self._watch: CallObserver | None = None

    def see(self, wanted: bool) -> None:
        """Install the observer of calls if calls are the steps, outside all others; or remove it."""
        if isinstance(self._watch, (OutermostCalls, NamedCalls)):
            self.watch(None)
        if wanted and self._steps.counts_calls and not self._guard.ended:  # an error can have ended it meanwhile
            self.watch(self._observer())

    def watch(self, watch: CallObserver | None) -> None:
        """Replace the observer by another one, or by none."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        if watch is not None:
            self._watch = watch
            watch.install()

    def stop(self) -> None:
        """Remove all observers of calls."""
        self.watch(None)
        self._steps.see_no_more_calls()

    def _observer(self) -> CallObserver:
        began, guard = self._guard(self._began), self._guard
        if self._steps.module_name is None:
            return OutermostCalls(began, guard(self._ended), guard.absorbs)
        return NamedCalls(
            self._steps.module_name,
            self._registry,
            outermost=began,
            began=guard(self._steps.named_call_began),
            ended=guard(self._steps.named_call_ended),
            absorbs=guard.absorbs,
        )

    def _began(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Record the entry of an outermost module outside the memory recording."""
        module_id = self._id_of(module)
        if module_id < 0:
            return
        self._registry.note_called(module_id)
        window = self._window()
        if window is not None and window.objects.can_take_steps(module_id):
            self._steps.call_began(module_id, partial(window.objects.expects_training, module_id))
            window.inputs.see(module_id, self._steps.seen + 1, args, kwargs)

    def _ended(self, module: torch.nn.Module) -> None:
        window, module_id = self._window(), self._id_of(module)
        if window is not None and module_id >= 0:
            window.on_outermost_end(module_id)

    def _id_of(self, module: torch.nn.Module) -> int:
        """Return a module's id; -1 for a graph of the compiler's own."""
        known = id(module) in self._registry.module_ids
        return -1 if not known and dynamo.is_compilers_own(module) else self._registry.register(module)
