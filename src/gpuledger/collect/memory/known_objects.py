"""What the memory recording knows of the program's objects: modules, optimizers and DataLoaders, and their tensors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gpuledger.collect.adapter.program_objects import state_of
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.inputs.input_shapes import InputShapes
from gpuledger.collect.memory.expected_training import ExpectedTraining
from gpuledger.collect.sharding.layouts import FlatLayout, Layouts
from gpuledger.collect.steps.step_counter import StepCounter


class KnownObjects:
    """Finds live modules, optimizers and DataLoaders, and sees where their tensors are.

    Args:
        registry: Ids of modules.
        steps: The step counter, which knows the optimizers.
        observed: The observed tensors.
        inputs: The inputs of outermost modules.
        flat_layouts: Yields the layouts of flat parameters.
        journal: Where pauses are written.
    """

    def __init__(
        self,
        registry: ModuleRegistry,
        steps: StepCounter,
        *,
        observed: TensorObservations,
        inputs: InputShapes,
        flat_layouts: Callable[[], Iterator[FlatLayout]],
        journal: RankJournal,
    ) -> None:
        self.sees_tensors = False
        """Whether the addresses of tensors are to be recorded, as during the memory recording."""
        self.were_searched = False
        """Whether live objects were searched since the program made its first ones."""
        self._registry, self._steps, self._observed, self._inputs = registry, steps, observed, inputs
        self._layouts = Layouts(registry, observed, flat_layouts, lambda: steps.optimizers)
        self._expected = ExpectedTraining(steps, registry)
        self.has_trained = self._expected.has_trained
        self._journal = journal
        self._outer_call = -1, 0
        """The outermost module that was called last, and the number of steps that had ended then."""
        journal.sources += [observed, inputs, self._layouts]

    def expects_training(self, module_id: int = -1) -> bool:
        """Return whether calls of a module before the first step of an optimizer are not steps of their own."""
        if not self.were_searched:
            self.search()
        return self._expected.of(module_id)

    def can_take_steps(self, module_id: int) -> bool:
        """Return whether calls of an outermost module can be steps. Finds modules that were not called yet."""
        if not (self.were_searched or self._registry.holds_tensors(module_id)):
            self.search()
        return self._registry.can_take_steps(module_id)

    def see_outer_call(self, module_id: int) -> None:
        """Record the begin of an outermost module's call."""
        self._outer_call = module_id, self._steps.seen

    def see_inner_input(self, module_id: int, args: Any, kwargs: Any) -> None:
        """Record the input of a module that is trained inside of another one's call, which has those of all steps."""
        outer_id, seen = self._outer_call
        if self._steps.seen > seen + 1 and self._hold_parameters(module_id):
            self._inputs.withdraw(outer_id)
            self._inputs.see(module_id, self._steps.seen + 1, args, kwargs)

    def _hold_parameters(self, module_id: int) -> bool:
        """Return whether a module or one inside it has parameters."""
        registry = self._registry
        return any(one >= 0 and registry.is_below(one, module_id) for *_, one in registry.parameters)

    def search(self) -> None:
        """Search for live objects, while the program is paused."""
        started_ns = time.time_ns()
        self.look_for(LiveObjects())
        self._journal.pause("scan", started_ns)

    def look_for(self, living: LiveObjects) -> None:
        """Register live modules and optimizers that are not registered, and record the addresses of their tensors."""
        self.were_searched = True
        self._steps.optimizers.update(self._registry.register_alive(living))
        self._inputs.see_loaders(living.loaders())
        if self.sees_tensors:
            self.see_again()

    def had_trained(self) -> None:
        """Record that optimizers with a state have stepped before the recording began."""
        self.has_trained.update(one for one in self._steps.optimizers if state_of(one))

    def see_again(self) -> None:
        """Record the current addresses of all weights, buffers, gradients and optimizer states."""
        self._observed.see_weights()
        for optimizer in self._steps.optimizers:
            self._observed.meet(optimizer)
        is_too_early = self._observed.has_stand_ins()  # the parameters seem to be in no module until the call ends
        for optimizer in self._steps.optimizers:
            if not (is_too_early or self._observed.knows(optimizer)):
                self._observed.see_loose_parameters(optimizer)
            self._observed.see_optimizer(optimizer, again=True)
        self._observed.see_gradients()
        self._layouts.see()
