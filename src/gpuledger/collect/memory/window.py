"""The memory recording: records the allocations of the selected steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpuledger.collect.adapter.guard import Guard, take_out_all
from gpuledger.collect.attribution.communication import collectives_backend
from gpuledger.collect.attribution.kept_blocks import KeptBlocks
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.modules import ModuleTracker
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.recorder import FillsUp, Recorder, ShowsOperators
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.compiled.compiled_graphs import CompiledGraphs
from gpuledger.collect.compiled.compiled_memory import CompiledMemory, SeesBuffers
from gpuledger.collect.inputs.caches import Caches
from gpuledger.collect.inputs.data_sets import DataSets
from gpuledger.collect.inputs.input_shapes import InputShapes
from gpuledger.collect.inputs.written_caches import WrittenCaches
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.memory.device_readings import CardReader
from gpuledger.collect.memory.first_collectives import FirstCollectives
from gpuledger.collect.memory.followed_operators import FollowedOperators
from gpuledger.collect.memory.known_objects import KnownObjects
from gpuledger.collect.memory.operator_limit import OperatorLimit
from gpuledger.collect.memory.operator_times import OperatorTimes
from gpuledger.collect.memory.optimizer_facts import describe_optimizers
from gpuledger.collect.memory.pending_events import PendingEvents
from gpuledger.collect.memory.precision import Precision
from gpuledger.collect.sharding.marked_calls import ShardingContext
from gpuledger.collect.sharding.sharded_training import ShardedTraining
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.collect.variables.earlier_weights import EarlierWeights
from gpuledger.collect.variables.graph_updates import GraphUpdates
from gpuledger.collect.variables.held import HeldNames
from gpuledger.collect.variables.hooked_updates import HookedUpdates
from gpuledger.collect.variables.leaves import LooseLeaves
from gpuledger.collect.variables.names import names_of
from gpuledger.collect.variables.updates import WeightUpdates
from gpuledger.model.accounts import Phase

DRAIN_EVENTS = 100_000
"""Number of pending events that causes a drain at the end of the step, if the journal is kept in memory.

At twice this number, the drain does not wait for the end of the step.
"""

WAIT_STEPS = 10
"""Number of steps after the selected ones for which the recording waits if it cannot start."""

NEVER_OPEN = (
    "Memory was not recorded: every step ended inside a dispatch mode or a profiler of the program. Use --steps to "
    "choose steps outside of it."
)


class MemoryWindow:
    """Records allocations between :meth:`open` and :meth:`close`. Outside of these, nothing is installed.

    Methods can be called at any time and raise on failure. The caller protects the program from these errors.

    Args:
        recorder: The source of allocation events.
        journal: Where everything is written.
        steps: The step counter. A recorded step must not begin inside a pause.
        settings: Which steps are recorded, and whether Python stacks are.
        tables: Ids of tags, modules and stacks.
        card: Reads the GPUs beside the allocator's counters; None without a GPU.
        begins_late: Whether the program ran before the recording. Live modules and tensors are then searched at once.
        guard: Handles exceptions raised inside a module call.
    """

    def __init__(
        self,
        recorder: Recorder,
        journal: RankJournal,
        steps: StepCounter,
        settings: RecordSettings,
        *,
        tables: tuple[TagTable, ModuleRegistry, StackTable],
        card: CardReader | None,
        begins_late: bool,
        guard: Guard,
    ) -> None:
        self._tags, self._registry, self._stacks = tables
        self.recorder = recorder
        self.is_open = self.was_opened = False
        self.phases = Phases(recorder.set_token, self._tags)
        self.observed = TensorObservations(self._registry, recorder.counts, recorder.place_of, names_of)
        self.inputs = InputShapes(
            self._registry.may_have_sequence_first,
            self._registry.holds_tensors,
            lambda module_id: self._registry.container_of(module_id) >= 0,
        )
        self._sharded = ShardedTraining(
            ShardingContext(self.phases, self._registry, self.observed, recorder.see_resized, guard, journal.note)
        )
        self._earlier = EarlierWeights(self.observed, guard)
        journal.sources += [self._earlier, self._sharded]
        self.objects = KnownObjects(
            self._registry,
            steps,
            observed=self.observed,
            inputs=self.inputs,
            flat_layouts=self._sharded.flat_layouts,
            journal=journal,
        )
        self._tracker = ModuleTracker(
            self.phases,
            self._registry,
            on_outermost=self._on_outermost,
            on_outermost_end=self.on_outermost_end,
            on_backward_end=self.on_backward_end,
            guard=guard,
        )
        self._updates = updates = WeightUpdates(self.observed, self.phases)
        self.observed.on_gradients = partial(updates.gradients_seen, registered=True)
        self._held = HeldNames(self.observed, recorder.known_place)
        sees_operators = isinstance(recorder, ShowsOperators)
        self._hooked = HookedUpdates(self._registry, updates, guard, sees_operators=sees_operators)
        self._tracker.leaves = LooseLeaves(self.observed, updates, self._held, self._hooked)
        self._caches = Caches(self.observed)
        self._followed = FollowedOperators(updates, guard, steps.optimizers, self.objects.search)
        self._compiled: CompiledMemory | None = None
        self._times: OperatorTimes | None = None
        self.on_steps: Callable[[], None] = lambda: None
        """Called when the program has steps, or what can be one."""
        self._guard = guard
        self._limit: OperatorLimit | None = None
        self._filling = recorder if isinstance(recorder, FillsUp) else None
        """The recorder, if it is one that fills up. To ask its class takes 50 µs, and a step asks for what it kept."""
        self._journal, self._steps = journal, steps
        self._settings = settings
        self._card = card
        self._begins_late = begins_late
        self._awaits_call = False
        self._collectives = FirstCollectives(self.read_counters, guard, journal.fact)
        self._precision = Precision(self._registry, guard)
        self._phases_before: list[Phase] = []
        self._pending = PendingEvents(recorder, journal)
        self._follow(updates)

    def _follow(self, updates: WeightUpdates) -> None:
        """See the operators that update weights: through a recorder of operators, or with an observer of its own."""
        if isinstance(self.recorder, ShowsOperators):
            self.recorder.follow(self._with_inputs(updates))
        else:
            self._followed.follow(self._tracker)
        if self._filling is not None:
            self._filling.on_full = self._drain_when_full
            self._limit = OperatorLimit(self._filling, self._journal, self._steps, self._drain_when_full)

    def _with_inputs(self, updates: WeightUpdates) -> WrittenCaches:
        """See data sets and caches, too. A recorder on a GPU sees no operators."""
        self.observed.on_input = self.inputs.is_taken = (data := DataSets(self.observed, self.phases, updates)).taken
        return WrittenCaches(self.observed, self.phases, data)

    def divide_compiled(self, graphs: CompiledGraphs) -> None:
        """Attribute the memory of compiled regions to their modules. Called before the recording is opened."""
        recorder = self.recorder if isinstance(self.recorder, SeesBuffers) else None
        self._compiled = CompiledMemory(graphs, self.phases, self._stacks, self._guard, recorder)
        self._compiled.look_for_modules = self.objects.search
        self._compiled.see_flow = GraphUpdates(self._updates).see

    # -- opening and closing ----------------------------------------------------------------------------------------

    def may_open(self) -> bool:
        """Return whether the next step is one to be recorded, and the recorder can start here."""
        return not self.was_opened and self._steps.seen + 1 >= self._settings.first_step and self.recorder.can_open()

    def is_too_late(self) -> bool:
        """Return whether recording could not start at the selected steps, nor at WAIT_STEPS after them."""
        return not self.was_opened and self._steps.seen >= self._settings.last_step + WAIT_STEPS

    def note_if_never_open(self) -> None:
        """Store a note if steps ended and in none of them recording could start."""
        if not self.was_opened and self._steps.seen >= self._settings.first_step:
            self._journal.note(NEVER_OPEN)

    def open(self) -> None:
        """Start recording allocations."""
        if self.is_open:
            return
        started_ns = time.time_ns()
        living = LiveObjects()
        self.recorder.open(self._journal.part, living)
        self._pending.opened()
        if self._limit is not None:
            self._limit.begin(has_steps=bool(self._steps.seen))
        self.is_open = self.was_opened = self.objects.sees_tensors = True
        if self._steps.seen:
            self.phases.step, self.phases.phase = self._steps.seen + 1, Phase.BETWEEN
        self._tracker.look_around()
        self.phases.start()
        self._tracker.install()
        if self._compiled is not None:
            self._compiled.install()
        self._sharded.install()
        self._precision.install()
        self._earlier.install()
        self.read_counters("open")
        if self._card is not None:
            self._awaits_call = not (self._steps.seen or self._begins_late)
            self._collectives.install()
        if self._steps.seen or self._begins_late:
            self.objects.look_for(living)
            if self._begins_late:
                self.objects.had_trained()
            self.objects.were_searched = bool(self._steps.seen)
        if self._settings.stacks:
            self._record_stacks()
        self._journal.pause("open", started_ns)
        self._steps.restart_clock()

    def close(self, reason: str) -> None:
        """Stop recording. Writes the last of the history and a full snapshot. ``reason`` is stored as the cause."""
        if not self.is_open:
            return
        started_ns = time.time_ns()
        self.take_out()
        if self._times is not None:
            self._times.write(self._journal, self._tags)
        if not self.objects.were_searched:
            self.objects.look_for(LiveObjects())
        self.objects.see_again()
        self.read_counters("close")
        self._pending.note_bytes()
        self._pending.note_keeping()
        self.close_recorder()
        self._journal.fact(closed=reason, collectives=collectives_backend(), precision=self._precision.describe())
        self._journal.fact(optimizers=describe_optimizers(self._steps.optimizers))
        self._journal.pause("close", started_ns)
        self._journal.write()

    def take_out(self) -> None:
        """Remove the observers of modules. :meth:`close_recorder` ends the recorder itself."""
        self.is_open = self.objects.sees_tensors = False
        compiled = [] if self._compiled is None else [self._compiled.remove]
        ours = [self._tracker.remove, self._hooked.end, self._collectives.remove, self._sharded.remove]
        ours += [self._precision.remove, self._earlier.remove]
        take_out_all([*ours, *compiled, self._followed.retire, self._stacks.forget_code])

    def close_recorder(self) -> bool:
        """End the recorder and write its pending events. Return False if it must be called again later."""
        try:
            is_out = self._followed.retire()
            return self.recorder.close(self._journal.part, "close") and is_out
        finally:
            self._stacks.forget_code()

    @property
    def kept(self) -> KeptBlocks | None:
        """Return the blocks that were alive at the end of the recording; None if they are not known one by one."""
        return None if self._filling is None else self._filling.kept

    @property
    def step_allocations(self) -> int:
        """Return the largest number of allocations in a recorded step."""
        return self._pending.step_allocations

    def is_idle(self) -> bool:
        """Return whether no allocation was recorded."""
        return not any(any(pair) for pair in self.recorder.counts().values())

    # -- a recorded step --------------------------------------------------------------------------------------------

    def end_step(self) -> bool:
        """End the recording after the last selected step; before that, drain if needed. Return whether it has ended."""
        self._awaits_call = False
        self._has_steps()
        if self._times is not None:
            self._times.step_ended(is_whole=self._limit is None or not self._limit.is_paused)
        self.read_counters("step_end")
        self._held.see()
        if not self.objects.were_searched:
            self.objects.search()
        self._pending.step_ended(self._steps.seen)
        if self._steps.seen >= self._settings.last_step:
            self.close("last step")
            return True
        if self._journal.keeps_steps:
            self._pending.keep_step()
            self._steps.restart_clock()
        elif self._pending.count() > DRAIN_EVENTS:
            self.drain()
        self._tracker.look_again()
        self.phases.change(self.phases.phase, step=self._steps.seen + 1)
        if self._limit is not None:
            self._limit.step_begins()
        return False

    def _record_stacks(self) -> None:
        """Record the Python stacks of allocations, and of module calls for the allocations of their backward."""
        self.recorder.set_stacks(True)
        self._tracker.intern_stack = self._stacks.intern_frame
        if self._compiled is not None:
            self._compiled.with_stacks = True
        time_operators = getattr(self.recorder, "time_operators", None)
        if time_operators is not None and "time" in self._settings.passes:
            self._times = time_operators()

    def _has_steps(self) -> None:
        """Record that the program has steps, or what can be one. Their time is measured after the recorded ones."""
        if self._times is not None:
            self._times.expect_steps()
        if self._limit is not None and self.is_open:
            self._limit.steps_begin()
        self.on_steps()

    def before_optimizer(self, optimizer: Any) -> None:
        """Record the start of an optimizer step."""
        self._has_steps()
        self._phases_before.append(self.phases.phase)
        self._meet(optimizer)
        # A program can put other tensors into .grad after its backward.
        self.observed.see_gradients(of=optimizer, follow=self.phases.phase == Phase.BACKWARD)
        self.phases.enter_optimizer()

    def after_optimizer(self, optimizer: Any) -> None:
        """Record the end of an optimizer step."""
        self.observed.see_optimizer(optimizer)
        before = self._phases_before.pop() if self._phases_before else Phase.BETWEEN
        self.phases.leave_optimizer(Phase.BACKWARD if before == Phase.BACKWARD else Phase.BETWEEN)

    def _meet(self, optimizer: Any) -> None:
        """Find the modules of the parameters that an optimizer updates, if they were not called yet."""
        self.observed.meet(optimizer)
        if not self.observed.knows(optimizer):
            self.objects.search()
            self.observed.see_loose_parameters(optimizer)

    def _on_outermost(self, module_id: int, args: Any, kwargs: Any) -> None:
        self._followed.end()
        self._registry.note_called(module_id)
        if self._awaits_call and not self.is_idle():
            self._awaits_call = False
            self.read_counters("call")  # the CUDA context exists, and few libraries are loaded
        self._sharded.install()
        if self.phases.threads.stack:
            self.objects.see_inner_input(module_id, args, kwargs)
        elif self.objects.can_take_steps(module_id):
            self.objects.see_outer_call(module_id)
            self._has_steps()
            self._steps.call_began(module_id, partial(self.objects.expects_training, module_id))
            if not self.is_open and torch.is_grad_enabled():  # it ended here, so this call's end is not observed
                self._steps.call_ended(module_id, partial(self.objects.expects_training, module_id))
            self.inputs.see(module_id, self._steps.seen + 1, args, kwargs)
        self.observed.see_new_weights()
        self._earlier.name_known()
        self.observed.see_stand_ins()
        self.observed.see_inputs(module_id, args, kwargs)
        self._caches.call_began(module_id, args, kwargs)

    def on_outermost_end(self, module_id: int, result: Any = None) -> None:
        """Record the exit of an outermost module, and what it has returned."""
        self.inputs.returned(module_id, result)
        if self.is_open:
            self._caches.call_ended(module_id, result)
        if not self.phases.threads.stack and self.objects.can_take_steps(module_id):
            self._steps.call_ended(module_id, partial(self.objects.expects_training, module_id))

    def on_backward_end(self) -> None:
        """Record the end of a backward pass."""
        self.inputs.backward_ended()
        self.observed.see_weights()
        self.observed.see_gradients()
        if self._pending.count() > 2 * DRAIN_EVENTS:  # a long step, or steps that are not counted
            self.drain()

    # -- reading and writing ----------------------------------------------------------------------------------------

    def read_counters(self, reason: str) -> None:
        """Write the allocator's counters, and NVML samples of the same time."""
        t_ns = time.time_ns()
        self.recorder.read_counters(self._journal.part, self._steps.seen, reason, t_ns)
        self.read_card(t_ns)

    def read_card(self, t_ns: int) -> None:
        """Write NVML samples."""
        if self._card is not None:
            self._card.read(self._journal.part, t_ns)

    def drain(self) -> None:
        """Move pending events into the journal and write it, while the program is paused."""
        self._pending.drain()

    def _drain_when_full(self) -> None:
        """Drain between two operators: no step ends, no backward pass ends, and events pile up."""
        if self.is_open:
            self.drain()
