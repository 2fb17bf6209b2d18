"""Measurements after the memory recording: the timing measurement, then unprofiled steps for energy and step time.

The timing measurement comes first because it takes three steps. The energy measurement takes seconds, which a short
program does not have.

A measurement that the user has requested always begins, and a note reports its outcome. A default measurement begins
only if nothing prevents it. If something does, the reason is stored apart from the notes, because it is not a fault.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard, calling, take_out_all
from gpuledger.collect.adapter.user_profiler import UserProfiler
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.compiled.compiled_graphs import CompiledGraphs
from gpuledger.collect.launch.settings import MEASUREMENT, RecordSettings
from gpuledger.collect.passes import energy_cards
from gpuledger.collect.passes.cpu_wait import CpuWait
from gpuledger.collect.passes.energy_pass import EnergyPass
from gpuledger.collect.passes.graph_captures import GraphCaptures
from gpuledger.collect.passes.held_threads import HeldThreads
from gpuledger.collect.passes.outcomes import OWN_PROFILER, PROFILED_ENERGY, USES_GRAPHS, LaterMeasurement, Outcomes
from gpuledger.collect.passes.program_times import ProgramTimes
from gpuledger.collect.passes.thread_end import ThreadEnd
from gpuledger.collect.passes.time_pass import CALLS, TimePass
from gpuledger.collect.passes.timing_preconditions import FEWEST_TIME_STEPS, TIME_TRIES, advice_for, why_no_time_pass
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.model.pass_facts import TIME_STEPS, UNPROFILED_STEPS


class LaterPasses:
    """Runs the measurements after the memory recording, and reports when the last one has ended.

    Args:
        settings: Which measurements are wanted, and the last recorded step.
        journal: Where everything is written.
        steps: The step counter.
        registry: Ids of modules.
        beside: Called with what is measured from now on.
        guard: Wraps callbacks from the program.
        see_calls: Installs the observer of outermost calls outside all others (True), or removes it (False). Without
            it, steps that are module calls are not counted.
    """

    def __init__(
        self,
        settings: RecordSettings,
        journal: RankJournal,
        steps: StepCounter,
        registry: ModuleRegistry,
        beside: Callable[[LaterMeasurement], None],
        *,
        guard: Guard,
        see_calls: Callable[[bool], None],
    ) -> None:
        self._settings, self._journal, self._steps = settings, journal, steps
        self._see_calls, self._beside = see_calls, beside
        self._first_step = self._last_step = self._step_allocations = 0
        self.has_begun = False
        self._time_steps = settings.passes.get("time", 0) or TIME_STEPS
        self._tries_left = TIME_TRIES
        self._others_step = False
        """Whether profiled steps have ended in another thread than the one that started the profiler."""
        self._program: ProgramTimes | None = None
        self._has_lines = False
        """Whether the step with source lines has begun. The profiled steps are complete then."""
        self._say = Outcomes(journal, asked=settings.passes_asked).say
        self._pid = os.getpid()
        self._wanted = [name for name in ("time", "energy") if name in settings.passes]
        """The measurements that have not begun, in their order."""
        self._last_unprofiled: int | None = None
        """The step after which the recording ends without an energy measurement; None before the unprofiled steps."""
        self._thread_end = ThreadEnd()
        self._energy_pass = EnergyPass(journal, steps, self._say, settings.passes.get("energy", 0))
        self._drop_times = guard.for_good(self._drop)
        others = HeldThreads(journal, steps.turns.waiting, guard.absorbs)
        self._time_pass = TimePass(journal, registry, guard, self._drop_times, others)
        self._user_profiler: UserProfiler | None = None
        self._captures: GraphCaptures | None = None
        self._cpu_wait = CpuWait()
        if "time" in self._wanted:
            self._user_profiler = UserProfiler(guard(self._give_way), guard.absorbs)
            trace = TimePass(journal, registry, guard, guard.for_good(self._drop_capture))
            give_up = None if settings.passes_asked else partial(self._end_early, USES_GRAPHS)
            self._captures = GraphCaptures(trace, self._time_pass, journal, self._user_profiler, guard, give_up)
        self._guard = guard

    def divide_compiled(self, graphs: CompiledGraphs) -> None:
        """Attribute the kernels of compiled regions to their modules."""
        self._time_pass.divide_compiled(graphs)

    def use_lines(self, stacks: StackTable) -> None:
        """Record one more step with source lines after the profiled ones, with the ids of ``stacks``."""
        self._time_pass.use_lines(stacks)

    def watch_program(self, began: Callable[[], None]) -> None:
        """Measure the times of a GPU program that turns out to have no steps. Ends with :meth:`expect_steps`."""
        if self._user_profiler is not None:
            journal, watch = self._journal, self._user_profiler
            self._program = ProgramTimes(self._time_pass, journal, watch, began, self._guard)
            self._program.install()

    def expect_steps(self) -> None:
        """Record that the program has steps, or what can be one."""
        program, self._program = self._program, None
        if program is not None:
            program.drop()

    def install(self) -> None:
        """Start watching for forks and for profilers that the program starts."""
        if self._user_profiler is not None:
            self._user_profiler.install()
            os.register_at_fork(before=calling(self._guard, self._before_any_fork))

    def trace_captures(self) -> None:
        """Trace captures of CUDA graphs if the user has asked for the timing measurement; else they end it."""
        if self._captures is not None:
            self._captures.install()

    def _drop_capture(self) -> None:
        if self._captures is not None:
            self._captures.close()

    def begin(self, step_allocations: int, *, with_times: bool = True) -> None:
        """Begin after the last recorded step.

        Args:
            step_allocations: The largest number of allocations in one of them.
            with_times: Whether this is the end of a step and the program does not start its own profiler.
        """
        self.has_begun = True
        self._cpu_wait.begin()
        self._step_allocations = step_allocations
        if not with_times and "time" in self._wanted:
            self._wanted.remove("time")
            self._say(f"No timing measurement: {OWN_PROFILER}.")
        self._beside(LaterMeasurement.KERNELS)
        self._begin_next()

    def end_step(self) -> bool:
        """Record the end of a step. Return whether all measurements have ended."""
        has_ended = self._go_on()
        if has_ended:
            self._journal.fact(cpu_wait_frac=self._cpu_wait.wait_frac())
        return has_ended

    def _go_on(self) -> bool:
        if self._time_pass.is_open and not self._end_profiled_step():
            return False
        if self._energy_pass.is_open:
            return self._energy_pass.end_step()
        if self._last_unprofiled is None:
            self._begin_next()
            return False
        return self._steps.seen >= max(self._last_unprofiled, self._steps.prepared + UNPROFILED_STEPS)

    def _begin_next(self) -> None:
        """Begin the timing measurement, or else the unprofiled steps. Neither begins inside a graph capture."""
        if energy_cards.is_capturing() or self._begin_time_pass() or self._guard.ended or not self.close_profiler():
            return
        self._last_unprofiled = self._steps.seen + UNPROFILED_STEPS
        self._beside(LaterMeasurement.STEPS)
        if self._may_measure_energy():
            self._wanted.remove("energy")
            self._energy_pass.begin()
            if torch_private.is_profiling() and self._energy_pass.reads_cards:
                self._journal.note(PROFILED_ENERGY)

    def _end_profiled_step(self) -> bool:
        """Record the end of a profiled step. Return whether the timing measurement has ended."""
        beyond, ended_ns = self._steps.seen - self._last_step, self._steps.started_ns
        if beyond <= -self._time_steps:
            self._time_pass.measure_from(ended_ns)
            return False
        if not self._time_pass.is_of_this_thread or self._time_pass.awaits_call(beyond, ended_ns):
            self._others_step = True
            return False
        if self._steps.seen < self._last_step or energy_cards.is_capturing() or torch_private.is_in_backward():
            self._leave_out_operators()
            return False
        with self._time_pass.stopping() as can_stop:
            if not can_stop:
                self._others_step = True
                return False
            if not (self._has_lines or self._others_step) and self._begin_lines():
                return False
            self._end_times()
        self._journal.write()  # keep the result even if the program crashes later
        self._see_calls(True)
        self._steps.restart_clock()
        return True

    def _begin_lines(self) -> bool:
        """Begin the step with source lines. Return False if it is left out."""
        self._see_calls(False)  # restored modes can lie below it
        self._has_lines = self._time_pass.begin_lines(self._steps.seen + 1 + self._steps.is_under_way)
        self._see_calls(True)
        self._steps.restart_clock()
        return self._has_lines

    def _end_times(self) -> bool:
        if self._others_step and not self._has_lines and self._steps.seen > self._last_step:
            self._journal.fact(time_steps=[self._first_step, self._steps.seen])
        self._see_calls(False)
        return self._time_pass.end()

    def close_profiler(self) -> bool:
        """Stop a profiler that could not be stopped with its measurement. Return False if it still cannot."""
        if self._captures is not None and not (self._captures.is_open or self._captures.close()):
            return False
        return self._time_pass.is_open or self._time_pass.end(keep=False)

    def before_optimizer(self) -> None:
        """Record the start of an optimizer step."""
        for one in self._open_traces():
            one.enter_optimizer()

    def after_optimizer(self) -> None:
        """Record the end of an optimizer step."""
        for one in self._open_traces():
            one.leave_optimizer()

    def _open_traces(self) -> list[TimePass]:
        captured = [] if self._captures is None else [self._captures.trace]
        return [one for one in (self._time_pass, *captured) if one.is_open]

    def finish(self, end_last_steps: Callable[[], None]) -> None:
        """End at program exit or after the last step: keep what was measured, and report what was not.

        Args:
            end_last_steps: Records the steps that end with the program. The energy measurement has ended before them.
        """
        self._energy_pass.finish()
        if self._last_unprofiled is not None and self._steps.seen < self._last_unprofiled:
            self._journal.fact(cpu_wait_frac=self._cpu_wait.wait_frac())
        if self._captures is not None:
            self._captures.say_untraced()
        if self._program is not None:
            self._program.finish()
        end_last_steps()
        self._thread_end.stop()
        if self._time_pass.is_open:
            if not self._end_times():
                self._journal.fact(time_steps=None)
                self._say("No timing measurement: the program ended in another thread during it.")
            elif self._steps.seen < self._last_step:
                self._note_fewer_steps("the program")
        self._may_measure_energy()
        wanted, self._wanted = self._wanted, []
        if wanted and self._steps.seen:
            missing = " and no ".join(MEASUREMENT[name] for name in wanted)
            advice = advice_for(self._steps.seen, self._settings, still_recorded=not self.has_begun)
            self._say(f"No {missing}: the program ended after step {self._steps.seen}, before it could start.{advice}")

    def _thread_ended(self) -> None:
        """End the timing measurement with its thread, and begin it again if it has too few steps."""
        if not (self._time_pass.is_open and self._time_pass.is_of_this_thread):
            return
        if self._tries_left and self._steps.seen < self._first_step + FEWEST_TIME_STEPS - 1:
            self._drop()
        elif self._end_times() and self._steps.seen < self._last_step:
            self._note_fewer_steps("its thread")
        self._see_calls(True)

    def _note_fewer_steps(self, ended: str) -> None:
        """Store which steps were profiled before the program or its thread has ended."""
        measured = self._steps.seen - self._last_step + self._time_steps
        if measured > 0:
            self._journal.fact(time_steps=[self._first_step, self._steps.seen])
        if measured < (self._settings.passes.get("time", 0) or FEWEST_TIME_STEPS):
            advice = advice_for(self._steps.seen, self._settings)
            self._say(f"The timing measurement was cut short: {ended} ended during it.{advice}")

    def take_out(self) -> None:
        """Remove everything. Unfinished measurements are dropped."""
        self._wanted = []
        self._thread_end.stop()
        watch = [] if self._user_profiler is None else [self._user_profiler.remove]
        watch += [] if self._captures is None else [self._captures.remove]
        take_out_all([self._energy_pass.take_out, self.expect_steps, self._take_out_times, *watch])

    def _take_out_times(self) -> None:
        if os.getpid() != self._pid:
            self._time_pass.leave()
        else:
            take_out_all([lambda: self._see_calls(False), lambda: self._time_pass.end(keep=False)])

    def _begin_time_pass(self) -> bool:
        """Begin the timing measurement.

        Return False if it is not wanted or not possible. It begins at a later step if other threads compute.
        """
        watch = self._user_profiler
        if watch is None or "time" not in self._wanted:
            return False
        why_not = self._why_no_time_pass(watch)
        if why_not is not None:
            self._wanted.remove("time")
            self._say(f"No timing measurement: {why_not}.")
            return False
        with self._time_pass.starting() as can_start:
            return self._start_times(watch) if can_start else True

    def _start_times(self, watch: UserProfiler) -> bool:
        """Start the timing measurement. Return False if an error has ended it."""
        self._wanted.remove("time")
        self._tries_left -= 1
        started_ns = time.time_ns()
        self._journal.fact(time_pass_open=True)
        self._journal.write()  # kept if the program is killed during the measurement
        self._journal.pause("time", started_ns)
        self._see_calls(False)  # otherwise it would stay below the ranges of the profiled steps
        with watch.ours(self._drop):
            self._time_pass.begin()
        if not self._time_pass.has_all_threads:
            self._thread_end.watch(self._guard.for_good(self._thread_ended))
        if self._guard.ended:  # by an error in the detection of profilers
            self.take_out()
            return False
        self._see_calls(True)
        self._first_step = self._steps.seen + 1
        steps_before = self._time_pass.steps_before + self._steps.is_under_way
        self._last_step = self._steps.seen + steps_before + self._time_steps
        self._journal.fact(time_steps=[self._first_step, self._last_step])
        self._steps.restart_clock()
        self._time_pass.measure_from(self._steps.started_ns)
        return True

    def _leave_out_operators(self) -> None:
        """After the first step, record only kernels, unless all threads are recorded: their steps must have no gaps."""
        is_first = self._steps.seen == self._first_step and not self._time_pass.has_all_threads
        if is_first and not energy_cards.is_capturing():
            self._see_calls(False)  # restored modes can lie below it
            self._time_pass.leave_out_operators(self._steps.seen + 1)
            self._see_calls(True)
            self._steps.restart_clock()

    def _why_no_time_pass(self, watch: UserProfiler) -> str | None:
        if torch_private.is_in_backward():
            return "its steps end inside a backward pass, where a profiler cannot start"
        if not self.close_profiler() or watch.seen or torch_private.is_profiling():
            return OWN_PROFILER
        if not self._tries_left:
            return f"a fork, or a step of more than {CALLS:,} module calls, stopped it {TIME_TRIES} times"
        return None if self._settings.passes_asked else why_no_time_pass(self._step_allocations)

    def _may_measure_energy(self) -> bool:
        """Return whether the energy measurement is still wanted. Without a GPU that can be read, it is left out."""
        if "energy" in self._wanted and not self._energy_pass.is_possible(self._settings):
            self._wanted.remove("energy")
        return "energy" in self._wanted

    def _before_any_fork(self) -> None:
        if self._captures is not None and self._captures.is_open:
            self._captures.close()
        elif self._program is not None and self._program.is_open:
            self._program.end()
        elif self._time_pass.is_open and self._time_pass.is_of_this_thread:
            self._drop_times()

    def _drop(self) -> None:
        """Stop the timing measurement, and begin it again after this step.

        A child process is about to be forked and must not inherit a running profiler, the step has too many calls, or
        the thread ends that has started the profiler: no other one can stop it.
        """
        self._see_calls(False)
        self._time_pass.end(keep=self._has_lines, at_once=True)
        self._see_calls(True)
        if self._has_lines:
            return
        self._wanted.insert(0, "time")
        self._journal.fact(time_steps=None)

    def _give_way(self) -> None:
        """Stop the timing measurement and drop its data, because the program starts its own profiler."""
        self._drop_capture()
        if self._energy_pass.reads_cards:
            self._journal.note(PROFILED_ENERGY)
        self._end_early(OWN_PROFILER)

    def _end_early(self, why: str) -> None:
        """Stop the timing measurement. Its data are dropped, unless the profiled steps are complete."""
        if self._program is not None:
            self._program.end()
        elif self._time_pass.is_open:
            self._see_calls(False)
            self._time_pass.end(keep=self._has_lines, at_once=True)
            if not self._has_lines:
                self._journal.fact(time_steps=None)
                self._say(f"No timing measurement: {why}.")
            self._see_calls(True)
