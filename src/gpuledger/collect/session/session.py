"""The recording of one process: when it begins, what happens at each step, and when it ends.

No error of gpuledger may reach the program. Every callback from torch goes through one guard. On an error, the guard
removes everything, stores the error in the journal and lets the program continue.
"""

from __future__ import annotations

import atexit
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gpuledger.collect.adapter.guard import Guard, calling, describe, stopped_by, take_out_all
from gpuledger.collect.adapter.uncompiled import keep_uncompiled
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.recorder import Recorder
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.compiled.compiled_graphs import CompiledGraphs
from gpuledger.collect.flight.flight_recorder import FlightRecorder
from gpuledger.collect.flight.last_error import MemoryErrors
from gpuledger.collect.launch.ranks import claim_rank
from gpuledger.collect.launch.settings import ALL_STEPS, AUTO, RecordSettings
from gpuledger.collect.memory.device_readings import CardReader
from gpuledger.collect.memory.window import MemoryWindow
from gpuledger.collect.passes.later_passes import LaterPasses
from gpuledger.collect.session.exit_facts import AT_THE_LIMIT, can_stand_by, exit_facts, has_failed
from gpuledger.collect.session.late_optimizers import LateOptimizers
from gpuledger.collect.session.outside_backward import OutsideBackward
from gpuledger.collect.session.recorders import ProcessRecorders, RecorderFactory, describe_process
from gpuledger.collect.session.repeated_closing import RepeatedClosing
from gpuledger.collect.session.watched_calls import WatchedCalls
from gpuledger.collect.steps import marked_steps
from gpuledger.collect.steps.call_steps import FollowedModule, HeldCalls
from gpuledger.collect.steps.named_calls import explain_steps
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.collect.variables.names import outer_names_of
from gpuledger.model.journal.journal import OWN_ERROR, STEP_KINDS


class Session:
    """Records one process into ``rank-N/journal``.

    Args:
        settings: What to record.
        rank_directory: Creates the rank's directory, for a recording that the program starts itself. If None, the
            process creates a rank of the run in ``settings``.
        recorders: Selects the recorder and when it begins. If None, by what the process uses.
        from_outside: Whether the program is unaware of the recording. If None, this is True if ``rank_directory`` is
            None.
        begins_late: Whether tensors can already exist and must be searched. If None, True if the program starts the
            recording itself.
        on_step: Called with the number of steps at each step's end, after the step was written.
    """

    def __init__(
        self,
        settings: RecordSettings,
        *,
        rank_directory: Callable[[], Path] | None = None,
        recorders: RecorderFactory | None = None,
        from_outside: bool | None = None,
        begins_late: bool | None = None,
        on_step: Callable[[int], None] = lambda _steps: None,
    ) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.window: MemoryWindow | None = None
        self.from_outside = rank_directory is None if from_outside is None else from_outside
        self.stacks = StackTable()
        self.tags = TagTable()
        self.registry = ModuleRegistry(outer_names_of)
        self._recorders = ProcessRecorders() if recorders is None else recorders
        self._begins_late = rank_directory is not None if begins_late is None else begins_late
        self._on_step = on_step
        self._on_card = False
        claim = rank_directory or partial(claim_rank, settings.run_directory)
        self.journal = RankJournal(claim, [self.tags, self.registry, self.stacks])
        self.guard = Guard(self.fail)
        self.graphs = CompiledGraphs(self.registry, self.stacks, self.journal, self.guard.absorbs)
        self._late_optimizers = LateOptimizers(self.journal, settings.last_step - settings.first_step + 1)
        self._closing = RepeatedClosing(self.guard)
        flight = FlightRecorder(self.journal, self.registry, self.stacks, self.guard)
        self.flight = flight if settings.flight_recorder else None
        ended_by = flight.failures.ended_program
        self.memory_errors = MemoryErrors(self.ran_out_of_memory, lambda: self.steps.seen, ended_by)
        self.steps = StepCounter(
            self.guard,
            before_optimizer=self._before_optimizer,
            after_optimizer=self._after_optimizer,
            ended=self._step_ended,
            weights_version=self.registry.weights_version,
            step_on=settings.step_on,
            followed=FollowedModule(self.registry),
            held=HeldCalls(self._may_train, partial(self._add_step, "call")),
        )
        self._outside_backward = OutsideBackward(self.guard, self.steps)
        self.calls = WatchedCalls(self.steps, self.registry, self.guard, lambda: self.window)
        tables = settings, self.journal, self.steps, self.registry
        self._later = LaterPasses(*tables, flight.goes_on_beside, guard=self.guard, see_calls=self.calls.see)
        self._later.divide_compiled(self.graphs)
        if settings.stacks:
            self._later.use_lines(self.stacks)
        self.mark_step = self.guard(self.steps.mark)
        """Mark the end of a step; called by the program."""

    @property
    def ended(self) -> bool:
        """Return whether the measurements have ended. The flight recorder can continue."""
        return self.guard.ended or self._flies_alone

    @property
    def _flies_alone(self) -> bool:
        return self.flight is not None and self.flight.is_alone

    @property
    def _is_recording(self) -> bool:
        return self.window is not None and self.window.is_open

    # -- beginning ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Select a recorder and wait until it can begin. Called right after torch was imported."""
        self.guard(self._start)()

    def _start(self) -> None:
        atexit.register(self.finish, "exit")
        keep_uncompiled()
        os.register_at_fork(after_in_child=calling(self.guard, self._leave_to_parent))
        last_step = self.settings.last_step if self.settings.last_step < ALL_STEPS else None
        describe_process(self.journal)
        self.journal.fact(
            python_version=platform.python_version(),
            steps_asked=[self.settings.first_step, last_step],
            stacks=self.settings.stacks,
            passes=sorted(self.settings.passes),
        )
        self.steps.install()
        marked_steps.listen(self.mark_step)
        self.graphs.install()
        self._later.install()
        self._recorders.begin(self)

    def adopt(self, recorder: Recorder, card: CardReader | None) -> None:
        """Record with ``recorder``, from now on or from the first selected step. ``card`` reads its GPU."""
        self.calls.watch(None)
        keep_uncompiled()
        self.journal.fact(recorder=recorder.kind)
        self._on_card = card is not None
        self.window = MemoryWindow(
            recorder,
            self.journal,
            self.steps,
            self.settings,
            tables=(self.tags, self.registry, self.stacks),
            card=card,
            begins_late=self._begins_late,
            guard=self.guard,
        )
        self.window.divide_compiled(self.graphs)
        self.steps.watch_compiled_calls(self.window.objects.expects_training)
        if self._on_card:
            self._later.trace_captures()
            self.steps.watch_replays(self.journal.note)
        if self.flight is not None:
            self.flight.begin(lambda: self.window, on_card=self._on_card, takes_stacks=self.settings.stacks)
        self.window.on_steps = self._later.expect_steps
        if self.window.may_open():
            self.window.open()
            if self._on_card and self.settings.stacks:
                self._later.watch_program(partial(self.window.read_counters, "operator"))
        self.calls.see(not self.window.is_open or self.steps.module_name is not None)

    # -- ending ---------------------------------------------------------------------------------------------------

    def _close_window(self, reason: str) -> None:
        if self._is_recording and self.window is not None:
            self.window.close(reason)
            self._recorders.stop_watching()

    def end(self) -> None:
        """Remove everything that is still installed."""
        self.guard.ended = True
        self._take_out()

    def _take_out(self) -> None:
        window = [] if self.window is None else [self.window.take_out]
        marked_steps.stop_listening(self.mark_step)
        watches = [self._outside_backward.remove, self._recorders.stop_watching, self.memory_errors.remove]
        watches += [] if self.flight is None else [self.flight.take_out]
        take_out_all([*window, self.graphs.remove, self._later.take_out, self.calls.stop, self.steps.remove, *watches])

    def finish(self, reason: str = "exit") -> None:
        """End the recording and write the last of the journal. Called at exit and at the end of ``record``."""
        try:
            atexit.unregister(self.finish)
            if os.getpid() != self.pid:
                return
            self.guard.settle()
            if self.guard.lacked_room:
                self.journal.note(AT_THE_LIMIT)
            self.guard.for_good(self.memory_errors.see_last)()
            if self._stood_by(reason):
                self._close_recorder()
                self.end()
                return
            self.journal.fact(**exit_facts(reason))
            if self._is_recording:
                self._end_last_steps()
            self._close_window(reason)
            self._later.finish(self._end_last_steps)
            self._note_steps(reason)
            self._close_recorder()
            if self.flight is not None:
                self.flight.finish(self.steps.seen, has_all_steps=self.steps.has_seen_all)
            self.end()
            if self.window is None or not self.window.was_opened:
                self.journal.fact(closed=reason)
            if self.window is not None:
                self.window.note_if_never_open()
            if reason == "exit" and self.window is not None and self._on_card:
                self.window.recorder.read_counters(self.journal.part, self.steps.seen, "exit", time.time_ns())
            if self.window is not None or self.journal.part.notes:
                self.journal.write()
        except BaseException as error:
            if not self.guard.absorbs(error):
                raise

    def _may_train(self) -> bool:
        """Return whether calls of modules are held back, because a training may follow or go on."""
        return self.registry.awaits_first_call() or (self.window is not None and bool(self.window.objects.has_trained))

    def _end_last_steps(self) -> None:
        """Record the steps that end with the program."""
        if self.window is not None:
            seen = self.steps.seen
            self.steps.end_with_program(partial(self.window.objects.expects_training, self.steps.followed_id))
            if self.window.is_open and self.steps.seen > seen:
                self.window.read_counters("step_end")

    def _note_steps(self, reason: str) -> None:
        """Store a note if the steps are not what the user can expect."""
        note = explain_steps(self.steps, self.registry, self.settings.step_on, failed=has_failed(reason))
        if note and (self.from_outside or self.settings.step_on != AUTO):  # a recorded block can have no steps
            self.journal.note(note)

    def _stood_by(self, reason: str) -> bool:
        """Return whether this process did nothing while others of the run recorded, as torchrun's own process does."""
        if self.window is None or self.journal.begun or self.journal.part.notes or self.steps.seen:
            return False
        return self.window.is_idle() and can_stand_by(self.settings.run_directory, reason)

    def _leave_to_parent(self) -> None:
        """Remove the recording from a forked child. It stays with the parent."""
        if not self.guard.ended:
            self.end()

    def _close_recorder(self) -> None:
        """Close recorder and profiler. If one cannot be closed yet, try again at the next module calls."""
        if self.window is not None:
            self._closing.close(self.window.close_recorder, self._later.close_profiler)

    # -- steps ----------------------------------------------------------------------------------------------------

    def _before_optimizer(self, optimizer: Any) -> None:
        if not (self._flies_alone or self.steps.counts_calls):
            self.calls.see(False)
        if self._is_recording and self.window is not None:
            self.window.before_optimizer(optimizer)
            return
        self._late_optimizers.steps(optimizer, self.steps.seen + 1)
        if not self._flies_alone:
            self._later.before_optimizer()

    def _after_optimizer(self, optimizer: Any) -> None:
        if self.window is None:
            self._recorders.begin_after_step(self)
        elif self.window.is_open:
            self.window.after_optimizer(optimizer)
        elif not self._flies_alone:
            self._later.after_optimizer()

    def _step_ended(self, kind: str, start_ns: int, end_ns: int) -> None:
        """Record the end of a step and continue."""
        if self.flight is not None:
            self.flight.step_ended(self.steps.seen, end_ns)
            if self._flies_alone:
                self._on_step(self.steps.seen)
                return
        self._add_step(kind, self.steps.seen, start_ns, end_ns)
        if self._is_recording and self.steps.seen < self.settings.last_step:
            self._go_on()
        else:
            self._outside_backward.do(self._go_on)
        self._on_step(self.steps.seen)

    def _add_step(self, kind: str, number: int, start_ns: int, end_ns: int) -> None:
        self.journal.fact(steps_seen=number, trainings=self.steps.optimizer.trainings)
        self.journal.part.add(
            "steps",
            step=number,
            kind=STEP_KINDS.index(kind),
            recorded=self._is_recording,
            start_ns=start_ns,
            end_ns=end_ns,
        )

    def _go_on(self) -> None:
        """At a step's end: begin, drain or end the memory recording, or continue with the later measurements."""
        if self.guard.ended:
            return
        if self._is_recording and self.window is not None:
            if self.window.end_step():
                self._close_recorder()
                self._recorders.window_ended()
                self._late_optimizers.recording_ended(self.steps.optimizers, on_card=self._on_card)
                if self.flight is not None:
                    self.flight.recording_ended(self.steps.seen)
                self._begin_later_passes()
        elif self.window is not None and not self.window.was_opened:
            self._open_window(self.window)
        elif self._later.has_begun and self._later.end_step():
            self._end_measurements()
            self.journal.append()  # keep the result even if the program crashes later

    def _end_measurements(self) -> None:
        """Remove everything. The flight recorder continues, and steps are counted that need no observer of calls."""
        if self.flight is None:
            self.end()
            return
        ended = [self._later.take_out, self.calls.stop, self._outside_backward.remove, self._recorders.stop_watching]
        take_out_all(ended)
        self.flight.take_over(self.steps.seen)

    def _open_window(self, window: MemoryWindow) -> None:
        """Begin the memory recording if that is possible here, or give it up."""
        if window.may_open():
            self.calls.watch(None)
            window.open()
            self.calls.see(self.steps.module_name is not None)
        elif window.is_too_late():
            self.finish("never opened")

    def _begin_later_passes(self, *, with_times: bool = True) -> None:
        """Begin the later measurements, and observe outermost calls if they are the steps."""
        if self.window is not None:
            self.calls.see(True)
            self._later.begin(self.window.step_allocations, with_times=with_times)

    # -- what can go wrong ----------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Handle an error of gpuledger: remove everything, record it, and let the program continue."""
        if os.environ.get("GPULEDGER_DEBUG"):
            raise error
        self.journal.note(stopped_by(error))
        self.journal.fact(closed=OWN_ERROR)
        self.guard.ended = True
        for action in (self._take_out, self._close_recorder, self.journal.write):
            try:
                action()
            except Exception as another:
                self.journal.note(f"While stopping, another error: {describe(another)}")

    def ran_out_of_memory(self, facts: dict[str, Any]) -> None:
        """Record the memory in use at an out-of-memory error. The error itself reaches the program unchanged."""
        is_urgent = True
        if self.flight is not None:
            is_urgent = self.flight.failures.happened(facts, self.steps.seen + 1)
            if self.window is not None and not self.window.is_open and facts["device_idx"] >= 0:
                self.window.read_card(time.time_ns())
        else:
            self.memory_errors.recorded.append({**facts, "step": self.steps.seen + 1})
            self.journal.fact(oom=self.memory_errors.recorded)
        if self.window is not None and self.window.is_open:
            self.window.read_counters("oom")
            self.window.objects.see_again()
            self.window.drain()
        elif self.window is not None and is_urgent:
            self.journal.write()

    def give_way_to_profiler(self) -> None:
        """Stop recording: the program's profiler would count operators twice that pass through the dispatch mode."""
        if self._is_recording:
            self.journal.note("The program started its own profiler, so the recording of CPU tensors ended there.")
            self._close_window("program's own profiler")
            self._begin_later_passes(with_times=False)

    def give_way(self) -> None:
        """Stop recording, because the program stops its own memory history, or sets metadata of allocations."""
        if self._is_recording:
            self.journal.note("The program changed PyTorch's memory history, so the recording ended there.")
            self._close_window("program's own history")
            self.end()
