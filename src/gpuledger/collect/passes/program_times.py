"""Timing measurement of a GPU program without modules and steps: the kernels of its first operators, with their lines.

After :data:`AWAITED` operators, the program is searched for modules and optimizers. If it has some, it will have steps,
and nothing is measured here. Otherwise the profiler runs for :data:`MOST_OPERATORS` operators, or until the program
ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from gpuledger.collect.adapter import dispatch_modes, torch_entrances, torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.program_objects import attributes_of, holds_tensors
from gpuledger.collect.adapter.user_profiler import UserProfiler
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.main_thread import call_soon
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.passes import energy_cards
from gpuledger.collect.passes.time_pass import TimePass
from gpuledger.collect.passes.timing_preconditions import why_no_time_pass

AWAITED = 64
MOST_OPERATORS = 5_000
"""Maximum number of operators. Their trace takes about 30 KB of host memory for each, until it is written."""


class ProgramTimes:
    """Counts operators from :meth:`install` on. Call :meth:`drop` as soon as the program has steps.

    Args:
        time_pass: Records kernels.
        journal: Where facts are written.
        watch: Detects profilers of the program, and must not take this one for one of them.
        began: Called after the first operator on a GPU, when the CUDA context exists and few libraries are loaded.
        guard: Wraps what is called between two instructions of the program.
    """

    def __init__(
        self, time_pass: TimePass, journal: RankJournal, watch: UserProfiler, began: Callable[[], None], guard: Guard
    ) -> None:
        self._time_pass = time_pass
        self._journal = journal
        self._watch = watch
        self._began, self._begin_soon = began, guard(self._begin)
        self._first_soon = guard(self._await_operators)
        self._next: tuple[int, Callable[..., None]] = (1, self._first_soon)
        self._delay = 1
        """Number of operators until the next attempt, if one fails."""
        self._end_soon = guard(self.end)
        self._leave_out_shapes_soon = guard(self._leave_out_shapes)
        self._remove_soon = guard(self._remove)
        self._count = self._begun = self._operators = 0
        self._stop_counting = time_pass.stop_counting
        self._is_left = False
        """Whether another thread than the main one measures steps, with other line marks."""

    def install(self) -> None:
        """Start counting operators, unless something prevents it."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and not (dispatch_modes.has_dispatch_mode() or energy_cards.runs_with_others()):
            self._time_pass.count_operators(self._count_one)

    def _count_one(self) -> None:
        self._count += 1
        if self._time_pass.keeps_tensors and self._next[1] is self._end_soon:
            self._next = (self._count, self._leave_out_shapes_soon)
        if self._count == self._next[0]:
            call_soon(self._begin_or_end)

    def _begin_or_end(self) -> None:
        """Do what is next. Inside an operator that is about to end, wait for its end.

        In backward, and during the capture of a CUDA graph, try again later. So it is inside an ``autograd.Function``:
        the profiler crashes if it stops and starts while one operator is in progress.
        """
        if self._time_pass.is_in_operator:
            call_soon(self._begin_or_end)
        elif torch_private.is_in_backward() or torch_entrances.is_in_function() or energy_cards.is_capturing():
            self._try_later(self._next[1])
        else:
            self._next[1]()

    def _try_later(self, action: Callable[..., None]) -> None:
        """Call ``action`` after some operators, after twice as many each time.

        An attempt makes an operator slower, and Inductor's autotuner, for example, measures operators.
        """
        self._next = (self._count + self._delay, action)
        self._delay *= 2

    def _await_operators(self) -> None:
        """Note the first operator, once a tensor was on a GPU: a program can ask for its GPU's name long before."""
        if self._count < AWAITED // 2 and not torch_private.has_used_gpu():
            self._try_later(self._first_soon)
            return
        self._next, self._delay = (max(AWAITED, self._count + 1), self._begin_soon), 1
        self._began()

    def _begin(self) -> None:
        """Begin if the program has no modules with parameters and no optimizers."""
        has_modules = any(map(_is_trained, LiveObjects().modules()))
        is_free = not (self._watch.seen or torch_private.is_profiling())
        if has_modules or not is_free or why_no_time_pass(0) is not None:
            self._remove()
            return
        self._begun, self._delay = self._count, 1
        self._next = (self._count + MOST_OPERATORS, self._end_soon)
        with self._watch.ours(self.drop):
            self._time_pass.begin_program()

    def _leave_out_shapes(self) -> None:
        """Record on without shapes of operators, with which the profiler keeps memory of the program's tensors."""
        self._begun, self._delay = self._count, 1
        self._next = (self._count + MOST_OPERATORS, self._end_soon)
        with self._watch.ours(self.drop):
            self._time_pass.leave_out_shapes()

    @property
    def is_open(self) -> bool:
        """Return whether kernels are recorded."""
        return self._time_pass.is_open

    def end(self) -> None:
        """Stop, and hold what was measured until :meth:`finish`, because the program can still have steps."""
        if self._time_pass.is_open and self._time_pass.end(hold=True):
            self._operators = self._count - self._begun
        self._remove()

    def finish(self) -> None:
        """Stop at the end of the program, and write what was measured."""
        self.end()
        if self._operators:
            self._time_pass.write_held()
            timed = {"operators": self._operators, "is_whole": False, "before": self._begun}
            self._journal.fact(timed_program=timed)
            self._journal.write()

    def drop(self) -> None:
        """Stop, and keep nothing: the program has steps, and their time is measured later."""
        self._operators = 0
        self._time_pass.end(keep=False)
        self._remove()

    def _remove(self) -> None:
        """Remove the dispatch mode. If that is not possible now, try again later, in the main thread that has it."""
        self._try_later(self._remove_soon)
        if threading.current_thread() is threading.main_thread():
            self._stop_counting()
        elif not self._is_left:
            self._is_left, self._stop_counting = True, self._time_pass.leave_counting()
            call_soon(self._begin_or_end)


def _is_trained(one: Any) -> bool:
    """Return whether an object is an optimizer, or a module with parameters or buffers."""
    return issubclass(type(one), Optimizer) or ("_parameters" in attributes_of(one) and holds_tensors(one))
