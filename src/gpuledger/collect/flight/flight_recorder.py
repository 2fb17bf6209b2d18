"""The flight recorder of one process: from the first step to the end of the program, also after the measurements.

At each step: one row of counters. After the memory recording: on a GPU, the allocator keeps its last events. After all
measurements: now and then a census of live tensors. At an out-of-memory error: everything that explains it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.kept_blocks import KeptBlocks
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import module_id_of
from gpuledger.collect.flight.census import Census
from gpuledger.collect.flight.failures import Failures
from gpuledger.collect.flight.host_memory import HostMemory
from gpuledger.collect.flight.last_events import RING_ENTRIES, LastEvents
from gpuledger.collect.flight.late_stacks import LateStacks
from gpuledger.collect.flight.step_counters import HOST_FRAC, CudaCounters, DeviceCounters, StepCounters
from gpuledger.collect.flight.tensor_count import ReferenceCounts, TensorCount, referenced_tensors
from gpuledger.collect.memory.window import MemoryWindow
from gpuledger.collect.passes.outcomes import LaterMeasurement
from gpuledger.model.flight_facts import CENSUS_RATIO, FEWEST_TENSORS, FIRST_CENSUS_STEPS, GROWN_BYTES
from gpuledger.model.journal.journal import Part

WRITE_EVERY_NS = 5_000_000_000
WRITE_ROWS = 4_096
"""Counters are written after this time or this number of rows, so a killed process loses at most these."""

LOOK_NS = 20_000_000
"""Shortest time between two looks at whether it is time to write."""

SLOW_RATIO = 3
"""Ratio of the number of steps at a census to that at the one before, if memory has grown by less."""
SLOWLY_GROWN_BYTES = 1 << 20
"""Growth of host memory from which on there is such a census, if tensors did not become more."""

MOST_CENSUSES = 24


class FlightRecorder:
    """Records every step of a process until it ends.

    Args:
        journal: Where everything is written.
        registry: Ids of modules.
        stacks: Ids of Python stacks.
        guard: Wraps callbacks from the program.
    """

    def __init__(self, journal: RankJournal, registry: ModuleRegistry, stacks: StackTable, guard: Guard) -> None:
        self.is_alone = False
        """Whether all measurements have ended and only the flight recorder is installed."""
        self.failures = Failures(journal, registry, stacks)
        self._journal = journal
        self._guard = guard
        self._counters: StepCounters | None = None
        self._window: Callable[[], MemoryWindow | None] = lambda: None
        self._host = HostMemory()
        self._pid = os.getpid()
        self._events: LastEvents | None = None
        self._written_ns = time.time_ns()
        self._next_ns = 0
        self._censuses: list[dict[str, Any]] = []
        self._first: Census | None = None
        self._first_bytes = 0
        self._next_census = 0
        self._references = ReferenceCounts()
        self._uncounted: Census | None = None
        """The last census, if its tensors have still to be counted."""

    def begin(self, window: Callable[[], MemoryWindow | None], *, on_card: bool, takes_stacks: bool = False) -> None:
        """Start reading counters.

        Args:
            window: Returns the memory recording of the process.
            on_card: Whether the CUDA allocator is recorded.
            takes_stacks: Whether Python stacks of allocations are taken.
        """
        self._window = window
        self.failures.module_at_work = self._module_at_work
        devices = CudaCounters(torch.cuda.device_count()) if on_card else _CpuCounters(window)
        self._counters = StepCounters(devices, host_frac=HOST_FRAC if on_card else 1.0)
        if on_card:
            late = LateStacks(self._guard, RING_ENTRIES, self._counters.allocations) if takes_stacks else None
            self._events = LastEvents(self._journal, self.failures, self._counters, self._guard, late)
        self._journal.sources.append(self._counters)

    def step_ended(self, step: int, end_ns: int) -> None:
        """Record the end of a step."""
        if self._counters is None:
            return
        self._counters.read(step, end_ns)
        kept = self._kept()
        if kept is not None:
            kept.step_ended(step)
            self._count_tensors(kept, step)
        if self.is_alone:
            if self._events is None:
                self._references.step_ended(step)
            if self._uncounted is not None:
                self._count_for(self._uncounted)
            elif step >= self._next_census:
                self._look_around(step)
        if end_ns >= self._next_ns:
            self._next_ns = end_ns + LOOK_NS
            self._read_and_write(self._counters, step, end_ns)
        if self._events is not None:
            self._events.step_ended(end_ns)

    def _read_and_write(self, counters: StepCounters, step: int, end_ns: int) -> None:
        """Read the host's memory and write what there is, if it is time for either."""
        self._host.read_now_and_then(end_ns)
        if self.is_alone and (end_ns - self._written_ns >= WRITE_EVERY_NS or counters.rows >= WRITE_ROWS):
            self._written_ns = end_ns
            self._journal.fact(steps_seen=step, tensor_counts=self._references.counts)
            self._host.write_facts(self._journal)
            self._journal.append()

    def recording_ended(self, step: int) -> None:
        """Look at what is alive after ``step``, the last recorded one."""
        kept = self._kept()
        if kept is not None:
            self._count_tensors(kept, step)
        if self._events is not None and not _is_busy():
            started_ns = time.time_ns()
            self.failures.compare_with(Census(step), self._bytes_in_use())
            self._journal.pause("census", started_ns)

    def take_over(self, step: int) -> None:
        """Continue alone after ``step``, the last one of the measurements."""
        self.is_alone = True
        self._next_census = step + FIRST_CENSUS_STEPS
        self.goes_on_beside(LaterMeasurement.NOTHING)

    def goes_on_beside(self, measured: LaterMeasurement) -> None:
        """Keep what explains an out-of-memory error after the memory recording, beside what is measured from now on."""
        if self._events is not None:
            self._events.keep(measured)

    def finish(self, step: int, *, has_all_steps: bool = True) -> None:
        """Stop keeping events, and leave the last rows to the journal.

        Args:
            step: Number of the last step that was counted.
            has_all_steps: Whether steps were counted until now.
        """
        self.take_out()
        if self._counters is not None:
            counts = self._references.counts
            self._journal.fact(steps_seen=step, has_all_steps=has_all_steps, tensor_counts=counts)
            self._host.write_facts(self._journal)
            kept = self._kept()
            self._journal.fact(kept_blocks=None if kept is None else kept.as_fact())

    def _module_at_work(self) -> int:
        """Return the id of the module in the calling thread's token; -1 without one of this phase."""
        window = self._window()
        if window is None or not window.is_open:
            return -1
        token = window.phases.threads.token  # before its first hook, autograd's thread has that of the last backward
        return module_id_of(token) if token.startswith(f"{window.phases.prefix}.") else -1

    def _kept(self) -> KeptBlocks | None:
        """Return the blocks that the recorded steps left allocated; None where that is not known."""
        window = self._window()
        return None if window is None else window.kept

    def take_out(self) -> None:
        """Remove everything. Can be called more than once."""
        if self._events is not None:
            self._events.take_out()
        if os.getpid() == self._pid and torch_private.ring_is_on():
            torch_private.stop_ring()

    # -- censuses -------------------------------------------------------------------------------------------------

    def _look_around(self, step: int) -> None:
        """Take a census if it is due: the first always, later ones if memory or the number of tensors has grown."""
        self._next_census = math.ceil(CENSUS_RATIO * step)
        in_use = self._bytes_in_use()
        is_first = self._first is None
        if torch_private.is_in_backward() or len(self._censuses) >= MOST_CENSUSES:
            return
        grown_bytes = in_use - self._first_bytes
        if not is_first and grown_bytes < GROWN_BYTES and not self._grows_slowly(step, grown_bytes):
            return
        census = Census(step, self._first, max(grown_bytes, GROWN_BYTES))
        if is_first:
            self._first, self._first_bytes = census, in_use
            self.failures.compare_with(census, in_use)
        self._uncounted = census if census.needs_count else None
        self._censuses.append(census.as_fact())
        self._journal.fact(censuses=self._censuses)
        self._journal.pause("census", time.time_ns() - census.took_ns, census.took_ns)

    def _grows_slowly(self, step: int, grown_bytes: int) -> bool:
        """Return whether host memory or the number of tensors has grown a little, and the last census was long ago.

        Memory that is free in the process takes what is small, so that it hides growth at first. On a GPU, it does not.
        """
        first, counts = self._first, self._references.counts
        if first is None or not counts or step < SLOW_RATIO * int(self._censuses[-1]["step"]):
            return False
        more = 0 if first.tensor_references is None else counts[-1][1] - first.tensor_references
        return grown_bytes >= SLOWLY_GROWN_BYTES or more >= FEWEST_TENSORS * (step - first.step)

    def _count_for(self, census: Census) -> None:
        """Count the tensors for the last census. It had a step's time already, and this has that of another one."""
        if _is_busy():
            return
        self._uncounted = None
        started_ns = time.time_ns()
        census.count_tensors()
        self._censuses[-1] = census.as_fact()
        self._journal.fact(censuses=self._censuses)
        self._journal.pause("census", started_ns)

    def _count_tensors(self, kept: KeptBlocks, step: int) -> None:
        """Count the live tensors, if it is time: a leak makes them more with every step."""
        if not kept.is_counted_at(step) or _is_busy():
            return
        references = referenced_tensors()
        if references is None:
            return
        if kept.needs_addresses:
            started_ns = time.time_ns()
            counted = TensorCount()
            if counted.is_complete:
                kept.reached(counted.addresses)
            self._journal.pause("census", started_ns)
        kept.tensors_counted(step, references)

    def _bytes_in_use(self) -> int:
        counters = self._counters
        assert counters is not None
        on_cards = sum(max(one.allocated_bytes, 0) for one in counters.latest if one.device_idx >= 0)
        return on_cards or max(counters.host_bytes, 0)


def _is_busy() -> bool:
    """Return whether a backward pass or a profiler is running, during which tensors are not counted."""
    return torch_private.is_in_backward() or torch_private.is_profiling()


_UNKNOWN = [DeviceCounters(-1)]


class _CpuCounters:
    """Reads the recorder's own counters of CPU tensors during the memory recording. Afterwards they are not known."""

    def __init__(self, window: Callable[[], MemoryWindow | None]) -> None:
        self._window = window

    def __call__(self) -> list[DeviceCounters]:
        window = self._window()
        if window is None or not window.is_open:
            return _UNKNOWN
        scratch = Part()
        window.recorder.read_counters(scratch, 0, "step_end", 0)
        return [
            DeviceCounters(
                row["device_idx"],
                row["allocated_bytes"],
                row["reserved_bytes"],
                row["peak_allocated_bytes"],
                row["alloc_count"] - row["free_count"],
                row["alloc_count"],
            )
            for row in scratch.rows.get("counters", [])
        ]
