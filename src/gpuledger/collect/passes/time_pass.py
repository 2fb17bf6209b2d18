"""The timing measurement: a few steps under Kineto, with a range per module call, backward pass and optimizer step.

Every scope change leaves a mark. The journal stores Kineto's own events; they are attributed to modules afterwards.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import dispatch_modes, kineto, kineto_events, torch_entrances, torch_private
from gpuledger.collect.adapter.guard import Guard, take_out_all
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.compiled.compiled_graphs import CompiledGraphs
from gpuledger.collect.compiled.compiled_ranges import CompiledRanges
from gpuledger.collect.passes import energy_cards
from gpuledger.collect.passes.call_ranges import CallRanges
from gpuledger.collect.passes.held_threads import MOST_WAITS, HeldThreads
from gpuledger.collect.passes.kineto_columns import read_activities
from gpuledger.collect.passes.line_marks import LineMarks
from gpuledger.collect.passes.scope_marks import ScopeMarks
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import PHASE_RANGE

CALLS = 20_000
"""Maximum number of module calls.

Their operators are kept in host memory until the end, and a step can be long: if steps are those of the optimizer, it
can contain an evaluation.
"""


class TimePass:
    """Records kernels and operators between :meth:`begin` and :meth:`end`.

    Args:
        journal: Where the events are written.
        registry: Ids of modules.
        guard: Handles exceptions raised in gpuledger's code.
        overflow: Called if there are more than CALLS module calls, to end the measurement; must not raise.
        others: Holds other threads, to record all threads; None to record the calling one alone.
    """

    def __init__(
        self,
        journal: RankJournal,
        registry: ModuleRegistry,
        guard: Guard,
        overflow: Callable[[], None],
        others: HeldThreads | None = None,
    ) -> None:
        self.is_open = False
        self._others = others
        self._overflow = overflow
        self._calls_left = CALLS
        self._from_ns = 0
        self._journal = journal
        self._registry = registry
        self._profiler: kineto.Profiler | None = None
        self._guard = guard
        self._observations: list[Observation] = []
        self._ranges = CallRanges(registry)
        self._scopes = ScopeMarks(registry, guard)
        self._compiled: CompiledRanges | None = None
        self._lines: LineMarks | None = None
        self._held: list[Any] = []
        self._thread = 0
        self._alone: dict[str, int] | None = None
        self.on_events: Callable[[list[Any]], None] = lambda _events: None
        """Called with Kineto's events when they are written."""

    def divide_compiled(self, graphs: CompiledGraphs) -> None:
        """Attribute the kernels of compiled regions to their modules."""
        self._compiled = CompiledRanges(graphs, self._journal, self._guard)

    def use_lines(self, stacks: StackTable) -> None:
        """Allow :meth:`begin_lines`, with the ids of ``stacks``."""
        self._lines = LineMarks(stacks, self._guard)
        if self._compiled is not None:
            self._compiled.with_lines = True

    @property
    def _has_transforms(self) -> bool:
        return self._lines is not None and self._lines.stacks.has_transforms

    @property
    def keeps_tensors(self) -> bool:
        """Return whether the profiler keeps memory of tensors that the program has freed, see ``kineto.Profiler``."""
        return self.is_open and self._profiler is not None and self._profiler.has_shapes and self._has_transforms

    @property
    def records_operators(self) -> bool:
        """Return whether operators are recorded now, and not kernels alone."""
        return self.is_open and self._alone is None

    @property
    def is_of_this_thread(self) -> bool:
        """Return whether the calling thread has started the profiler, or it is of all. No other thread can stop it."""
        return self.has_all_threads or threading.get_ident() == self._thread

    @contextmanager
    def starting(self) -> Iterator[bool]:
        """Prepare for :meth:`begin` in the block. Other threads are held meanwhile if they are to be recorded.

        Yields:
            False if the measurement should begin at a later step, because other threads compute.
        """
        if self._others is None or self._all_threads() is None:
            yield True
            return
        with self._others.held() as do_wait:
            yield do_wait or self._others.waits_in_vain >= MOST_WAITS

    @contextmanager
    def stopping(self) -> Iterator[bool]:
        """Prepare to stop the profiler in the block. One of all threads stops only while the others are held.

        Yields:
            Whether the calling thread can stop the profiler now.
        """
        if self._others is None or not self.has_all_threads:
            yield self.is_of_this_thread
            return
        energy_cards.wait_for(energy_cards.cards_in_use())  # that can take longer than threads are held
        with self._others.held() as do_wait:
            yield do_wait

    def _all_threads(self) -> kineto.OthersWait | None:
        """Return what a profiler of all threads needs; None to record the calling one alone."""
        if self._others is None or not (self._registry.runs_in_other_threads() and kineto.can_record_all_threads()):
            return None
        return self._others.quiet

    @property
    def has_all_threads(self) -> bool:
        """Return whether operators of all threads are recorded."""
        return self._profiler is not None and self._profiler.has_all_threads

    @property
    def steps_before(self) -> int:
        """Return the number of steps that other threads wait to end. Their work was before the profile."""
        return self._others.waiting_count if self._others is not None and self.has_all_threads else 0

    def measure_from(self, from_ns: int) -> None:
        """Count what begins from a time on, in Unix ns. What was recorded before shows where it is."""
        self._from_ns = from_ns

    def awaits_call(self, steps_beyond: int, ended_ns: int) -> bool:
        """Return whether a profile of all threads has no whole call yet. A thread can have been held inside its call.

        Args:
            steps_beyond: Number of steps after the last one that is wanted; below 0 before it.
            ended_ns: End of the last step, in Unix ns.
        """
        is_bounded = 0 <= steps_beyond < threading.active_count()
        return is_bounded and self.has_all_threads and not self._ranges.has_whole_call(self._from_ns, ended_ns)

    def begin(self) -> None:
        """Start the profiler and install the ranges, while the program is paused."""
        started_ns = time.time_ns()
        self._thread = threading.get_ident()
        self._calls_left, self._alone = CALLS, None
        self._ranges.begin()
        self._profiler = kineto.Profiler(with_shapes=not self._has_transforms, all_threads=self._all_threads())
        self._profiler.start()
        self.is_open = True
        call = Observer(self._enter_call, self._ranges.leave, self._ranges.fail, absorbs=self._guard.absorbs)
        self._observations.append(Observation(torch_entrances.module_call(), call))
        self._observe_backward()
        self._scopes.install()
        if self._compiled is not None:
            self._compiled.install()
        self._journal.pause("time", started_ns)

    def keep_cupti(self) -> None:
        """Leave CUPTI attached at the end, because the program captures a CUDA graph meanwhile."""
        if self._profiler is not None:
            self._profiler.keep_cupti()

    def leave_out_operators(self, next_step: int) -> None:
        """Record only kernels from the next step on, if possible. The first step has shown which modules launch them.

        Recording operators is the largest part of the profiler's overhead. The ranges are not needed without them.
        """
        if self._profiler is None or not self.is_of_this_thread:
            return
        started_ns = time.time_ns()
        if self._profiler.leave_out_operators():
            self._take_out_ranges()
            self._alone = {"from_step": next_step, "from_ns": time.time_ns()}
            self._journal.pause("time", started_ns)

    def _observe_backward(self) -> None:
        backward = Observer(self._enter_backward, self._ranges.leave, self._ranges.fail, absorbs=self._guard.absorbs)
        for function in (torch_entrances.backward(), torch_entrances.grad()):
            self._observations.append(Observation(function, backward))

    def begin_lines(self, step: int) -> bool:
        """Record operators with the source lines that call them from now on, in the step after the measured ones.

        Return False if that is not wanted, if all threads are profiled, or if it could affect the program: it has its
        own dispatch modes, or other ranks that wait for it.
        """
        is_free = not (dispatch_modes.has_dispatch_mode() or energy_cards.runs_with_others() or self.has_all_threads)
        if self._lines is None or self._profiler is None or not (is_free and self.is_of_this_thread):
            return False
        started_ns = time.time_ns()
        energy_cards.wait_for(energy_cards.cards_in_use())
        self._profiler.record_operators_again()
        if self._alone is not None:
            self._observe_backward()
        self._journal.fact(line_step={"step": step, "from_ns": time.time_ns()})
        self._lines.install()
        self._journal.pause("time", started_ns)
        return True

    def count_operators(self, on_operator: Callable[[], None]) -> None:
        """Call ``on_operator`` after each operator of this thread, until :meth:`stop_counting`."""
        if self._lines is not None:
            self._lines.count(on_operator)

    @property
    def is_in_operator(self) -> bool:
        """Return whether this thread is inside an operator that is counted."""
        return self._lines is not None and self._lines.is_in_operator()

    def begin_program(self) -> None:
        """Record operators and kernels with their lines, while operators are counted."""
        started_ns = time.time_ns()
        self._thread = threading.get_ident()
        self._alone = None
        self._profiler = kineto.Profiler(with_shapes=not self._has_transforms)
        self._profiler.start()
        self.is_open = True
        self._observe_backward()
        if self._lines is not None:
            self._lines.is_on = True
        self._journal.pause("time", started_ns)

    def leave_out_shapes(self) -> None:
        """Begin the profile anew, without shapes of operators. What was recorded so far is dropped.

        The new one records the calling thread alone.
        """
        with self.stopping() as can_stop:
            if self._profiler is None or not can_stop:
                return
            energy_cards.wait_for(energy_cards.cards_in_use())
            started_ns = time.time_ns()
            self._profiler.stop(wait=not energy_cards.runs_with_others())
            self._thread = threading.get_ident()
            self._profiler = kineto.Profiler(with_shapes=False)
            self._profiler.start()
            self._journal.pause("time", started_ns)

    def stop_counting(self) -> bool:
        """Stop counting operators. Return False if that is not possible now; then call it again."""
        return self._lines is None or self._lines.remove()

    def leave_counting(self) -> Callable[[], bool]:
        """Leave the counting to its thread, which must remove it, and use other line marks from now on.

        Returns:
            What stops counting there; returns False if that is not possible now.
        """
        if self._lines is None:
            return lambda: True
        counting, self._lines = self._lines, LineMarks(self._lines.stacks, self._guard)
        return counting.remove

    def take_held(self) -> list[Any]:
        """Return the events that :meth:`end` has held back, once."""
        held, self._held = self._held, []
        return held

    def write_held(self) -> None:
        """Write the events that :meth:`end` has held back."""
        self._write(self.take_held())

    def end(self, *, keep: bool = True, hold: bool = False, at_once: bool = False) -> bool:
        """Stop the profiler and write Kineto's events, unless ``keep`` is False. The program is paused meanwhile.

        With ``hold``, they are not written before :meth:`write_held`. With ``at_once``, other threads can be computing:
        the program is about to fork, or to start its own profiler. A second call continues with what could not be
        removed.

        Returns:
            False inside a backward pass, because autograd would restore the profiler at the end of it; in another
            thread than the profiler's, because a profiler belongs to a thread; and while other threads compute, if it
            is one of all threads. The profiler then keeps running, its events are dropped, and this method must be
            called again.
        """
        if not keep:
            self._held = []
        if self._profiler is None:
            return self._lines is None or self._lines.remove()
        self._ranges.leave_optimizers()
        self.is_open = False
        self._journal.fact(time_pass_open=False)
        self._take_out_ranges()
        with self.stopping() as can_stop:
            if torch_private.is_in_backward() or not (self.is_of_this_thread if at_once else can_stop):
                return False
            is_alone = not (energy_cards.is_capturing() or energy_cards.runs_with_others())
            energy_cards.wait_for(energy_cards.cards_in_use())
            started_ns = time.time_ns()  # until here, the GPU was finishing the program's own work
            events = self._profiler.stop(wait=is_alone)
            of_all, self._profiler = self._profiler.has_all_threads, None
            if self._others is not None:
                self._others.let_go()
        if keep and hold:
            self._held = events
        elif keep:
            self._journal.fact(kernels_alone=self._alone, times_of_all_threads=of_all, times_from_ns=self._from_ns)
            if self._compiled is not None:
                self._compiled.write()
            self._write(events)
        self._journal.pause("time", started_ns)
        return True

    def leave(self) -> None:
        """Remove everything except the profiler itself, in a process that was forked during the measurement."""
        self.is_open = False
        self._profiler = None
        self._take_out_ranges()

    def _take_out_ranges(self) -> None:
        self._ranges.end_all()
        compiled = [] if self._compiled is None else [self._compiled.remove]
        lines = [] if self._lines is None else [self._lines.remove]
        take_out_all([lambda: remove_all(self._observations), self._scopes.remove, *compiled, *lines])

    def enter_optimizer(self) -> None:
        """Record the start of an optimizer step."""
        if self._alone is None:
            self._ranges.enter_optimizer()

    def leave_optimizer(self) -> None:
        """Record the end of an optimizer step."""
        self._ranges.leave_optimizer()

    def _enter_call(self, module: nn.Module, _args: Any, _kwargs: Any) -> list[Any] | None:
        """Open a range named after the module's id."""
        if not self.is_open or torch.compiler._is_compiling_flag:
            return None
        try:
            self._calls_left -= 1
            if self._calls_left < 0 and self._overflows():
                return None
            self._scopes.see_thread()
            return self._ranges.opened_for(module)
        except RecursionError:
            return None
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise
            return None

    def _overflows(self) -> bool:
        """End the measurement after too many calls. Return False if that is not possible now."""
        with self.stopping() as can_stop:
            if can_stop:
                self._overflow()
            return can_stop

    def _enter_backward(self, *_: Any) -> list[Any] | None:
        """Open a range for a backward pass."""
        if not self.is_open or torch.compiler._is_compiling_flag:
            return None
        self._scopes.see_thread()
        opened = self._ranges.opened(f"{PHASE_RANGE}{int(Phase.BACKWARD)}")
        if self._lines is not None and self._lines.is_on:
            self._lines.mark(sys._getframe(1).f_back)
        return opened

    def _write(self, events: list[Any]) -> None:
        until_ns = kineto_events.ALL_TIMES if self._alone is None else self._alone["from_ns"]
        read = read_activities(events, until_ns)
        if _is_on_card() and not read.has_kernels:
            self._journal.note("The timing measurement saw no kernels, so its times are those of operators on the CPU.")
        self._journal.fact(activity_names=read.names, operator_inputs=read.inputs)
        if read.columns["kind"]:
            self._journal.part.add("activities", **read.columns)
        self.on_events(events)


def _is_on_card() -> bool:
    """Return whether the program uses a GPU."""
    return any(device_idx >= 0 for device_idx, _ in energy_cards.cards_in_use())
