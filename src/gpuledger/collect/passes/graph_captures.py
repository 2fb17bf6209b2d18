"""Trace the captures of CUDA graphs, so that the kernels of their replays get modules.

A trace joins all kernels of a replay with one launch. They run in the order in which they were captured, if the capture
has one stream. So each of the first captures is profiled like a step: its operators, modules, and the calls that launch
work into the graph. A capture in a profiled step is part of that step's trace. Each replay in a profiled step has a
range with the number of its capture.

It is done only where the user asks for the timing measurement, because CUPTI stays attached after a capture: detaching
it can break a graph, and attached it makes replays slower. Otherwise a capture ends the timing measurement before it
begins.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_entrances, torch_private
from gpuledger.collect.adapter.guard import Guard, take_out_all
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.user_profiler import UserProfiler
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.passes.call_ranges import CallRanges
from gpuledger.collect.passes.kineto_columns import events_between, read_capture
from gpuledger.collect.passes.time_pass import TimePass
from gpuledger.model.journal.journal import GRAPH_RANGE
from gpuledger.units import counted

MOST_CAPTURES, MOST_ROWS = 64, 500_000
"""Limits of what is traced: number of captures, and rows of the journal."""


class GraphCaptures:
    """Traces captures between :meth:`install` and :meth:`remove`.

    Args:
        trace: A timing measurement of its own for captures.
        steps: The timing measurement. Replays get a range while it records operators.
        journal: Where captures are written.
        watch: Detects the program's own profiler, which has priority.
        guard: Handles exceptions raised in gpuledger's code.
        give_up: Called before each capture, which is not traced then; None to trace captures.
    """

    def __init__(
        self, trace: TimePass, steps: TimePass, journal: RankJournal, watch: UserProfiler, guard: Guard,
        give_up: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.trace = trace
        """Records the operators of a capture."""
        self._steps = steps
        self._journal = journal
        self._pid = os.getpid()
        self._watch = watch
        self._guard = guard
        self._give_up = give_up
        self._graphs: dict[int, tuple[weakref.ref[Any], int]] = {}
        """Id of each traced graph -> the graph, and the number of its capture."""
        self._observations: list[Observation] = []
        self._names: dict[str, int] = {}
        self._captures = self._rows = self._untraced = 0
        self._began_ns = 0
        """Start of a capture in progress during the timing measurement, in Unix ns; 0 for none."""
        self._in_steps: list[tuple[int, int, int]] = []
        """Number, start and end in Unix ns of the captures during the timing measurement."""
        steps.on_events = guard(self._write_those_in_steps)

    def install(self) -> None:
        """Start watching for captures and replays. Says if that is not possible with this torch."""
        absorbs = self._guard.absorbs
        observers = (
            Observer(self._begins, fail=self._failed, absorbs=absorbs),
            Observer(self._enter, self._ended, self._failed, absorbs=absorbs),
            Observer(self._replays, CallRanges.leave, CallRanges.fail, absorbs=absorbs),
        )
        watched = list(zip(torch_entrances.cuda_graph(), observers, strict=True))
        try:
            for function, observer in watched if self._give_up is None else watched[:1]:
                self._observations.append(Observation(function, observer))
        except CannotInstrumentError as error:
            self._journal.note(f"Kernels of replayed CUDA graphs have no modules: {error}.")
            self.remove()

    def remove(self) -> None:
        """Stop watching, and drop a capture in progress. In a forked child, its profiler is left alone."""
        if os.getpid() != self._pid:
            self.trace.leave()
        take_out_all([lambda: remove_all(self._observations), self.close])

    def close(self) -> bool:
        """Stop the trace of a capture in progress. Return False if that is not possible yet."""
        return self.trace.end(keep=False)

    @property
    def is_open(self) -> bool:
        """Return whether a capture is being traced."""
        return self.trace.is_open

    # -- captures ---------------------------------------------------------------------------------------------------

    def _begins(self, graph: Any, *_: Any) -> Any:
        """Start to trace a capture that is about to begin. The timing measurement's own trace has it, too."""
        self._graphs.pop(id(graph), None)
        if self._give_up is not None:
            self._give_up()
        self._steps.keep_cupti()
        if self._give_up is not None:
            return None
        if self._captures >= MOST_CAPTURES or self._rows >= MOST_ROWS:
            self._untraced += 1
        elif self._steps.records_operators and self._steps.is_of_this_thread:
            self._began_ns = time.time_ns()
            return graph
        elif self._may_trace():
            self._trace_now()
            return graph
        else:
            self._untraced += 1
        return None

    def _may_trace(self) -> bool:
        is_traced = self._steps.is_open or self.trace.is_open or torch_private.is_profiling() or self._watch.seen
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and not is_traced and not torch_private.is_in_backward()

    def _trace_now(self) -> None:
        with self._watch.ours(self.close):
            self.trace.begin()
            self.trace.keep_cupti()

    def _enter(self, graph: Any, *_: Any) -> Any:
        """Return the graph of a capture that is about to end, if it is traced."""
        return graph if self.trace.is_open or self._began_ns else None

    def _ended(self, graph: Any, _result: Any) -> None:
        """Write a capture that has ended, or keep its number and time until the timing measurement is written."""
        began_ns, self._began_ns = self._began_ns, 0
        if self._steps.records_operators and began_ns:
            self._in_steps.append((self._captures, began_ns, time.time_ns()))
        elif not (self.trace.end(hold=True) and self._write(self._captures, self.trace.take_held())):
            return
        self._graphs[id(graph)] = weakref.ref(graph), self._captures
        self._captures += 1

    def _write_those_in_steps(self, events: list[Any]) -> None:
        """Write the captures during the timing measurement.

        Args:
            events: The events of the timing measurement.
        """
        in_steps, self._in_steps = self._in_steps, []
        for number, began_ns, ended_ns in in_steps:
            self._write(number, events_between(events, began_ns, ended_ns))

    def _write(self, number: int, events: list[Any]) -> bool:
        """Write a capture. Return False if nothing was recorded."""
        columns, names = read_capture(events)
        count = len(columns["kind"])
        if not count:
            return False
        known = [self._names.setdefault(name, len(self._names)) for name in names]
        columns["name_id"] = [known[name_id] for name_id in columns["name_id"]]
        self._rows += count
        self._journal.part.add("captures", capture=[number] * count, **columns)
        self._journal.fact(captured_names=list(self._names))
        return True

    def _failed(self, _graph: Any) -> None:
        """Drop a capture that has failed."""
        self._began_ns = 0
        self.close()

    # -- replays ----------------------------------------------------------------------------------------------------

    def _replays(self, graph: Any) -> list[Any] | None:
        """Open a range with the number of the capture, in a step whose operators are recorded."""
        known, number = self._graphs.get(id(graph), (None, -1))
        if not self._steps.records_operators or known is None or known() is not graph:
            return None
        opened = torch_private.open_range(f"{GRAPH_RANGE}{number}")
        opened.__enter__()
        return [opened]

    def say_untraced(self) -> None:
        """Note how many captures were not traced, if any."""
        if self._untraced and self._captures:
            self._journal.note(f"{counted(self._untraced, 'capture')} of CUDA graphs could not be traced.")
