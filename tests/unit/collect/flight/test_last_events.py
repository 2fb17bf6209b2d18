"""What the allocator keeps beside the measurements after the memory recording, and what it may cost there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from memory_history import History, Watch, history

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.flight import last_events
from gpuledger.collect.flight.failures import Failures
from gpuledger.collect.flight.last_events import DECIDE_NS, EVENT_NS, RING_ENTRIES, RING_FRAC, STAYS_FRAC, LastEvents
from gpuledger.collect.flight.late_stacks import LOOK_NS, LateStacks, Taken
from gpuledger.collect.flight.stack_budget import (
    FIRST_NS,
    MEASURED_FRAC,
    MEASURED_MOST_NS,
    MOST_NS,
    RESERVED_NS,
    SETTLING_NS,
    SHARE_FRAC,
)
from gpuledger.collect.flight.step_counters import DeviceCounters, StepCounters
from gpuledger.collect.passes.outcomes import LaterMeasurement

__all__ = ["history"]

GIB = 1 << 30


class Process:
    """A training on a GPU of 80 GiB."""

    def __init__(self, directory: Path, *, takes_stacks: bool = True) -> None:
        self.directory = directory
        self.reserved_bytes, self.allocations, self.now_ns = GIB, 0, 0
        self.counters = StepCounters(self._read)
        guard = Guard(lambda error: pytest.fail(str(error)))
        journal = RankJournal(lambda: directory, [])
        self.failures = Failures(journal, ModuleRegistry(), StackTable())
        self.late = LateStacks(guard, RING_ENTRIES, self.counters.allocations, lambda: self.now_ns)
        late = self.late if takes_stacks else None
        self.events = LastEvents(journal, self.failures, self.counters, guard, late)

    def _read(self) -> list[DeviceCounters]:
        return [DeviceCounters(0, GIB, self.reserved_bytes, GIB, 50, self.allocations, 0), DeviceCounters(-1)]

    def train(self, step_ns: int = 10_000_000, allocations: int = 1_000, steps: int = 1) -> None:
        for _ in range(steps):
            torch.nn.Identity()(1)
            self.now_ns += step_ns
            self.allocations += allocations
            self.counters.read(1, self.now_ns)
            self.events.step_ended(self.now_ns)


@pytest.fixture
def process(history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    assert not history.owner
    monkeypatch.setattr(torch_private, "memory_fraction", lambda _device: 1.0)
    card = SimpleNamespace(total_memory=80 * GIB)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _device: card)
    monkeypatch.setattr(last_events, "DECIDE_NS", 0)
    return Process(tmp_path)


def test_beside_the_profiler_the_events_are_kept_without_stacks(process: Process, history: History) -> None:
    process.events.keep(LaterMeasurement.KERNELS)
    process.train(steps=3)
    assert (history.owner, history.kept_with) == ("ring", [None])
    process.events.take_out()


LONG = 1_000
BETWEEN_LIMITS = round(0.9 * RING_FRAC[LaterMeasurement.NOTHING] * 10_000_000 / (2 * EVENT_NS))
"""Allocations of a step of 10 ms: the ring takes too much of it, and nearly what it may without measurements."""


def settle(process: Process, allocations: int = LONG) -> None:
    """Train until power and clock have settled."""
    process.train(10_000_000, allocations, steps=2 + SETTLING_NS // 10_000_000)


@pytest.mark.parametrize("measured", [LaterMeasurement.STEPS, LaterMeasurement.NOTHING])
def test_where_the_ring_takes_long_it_is_off_inside_a_step(
    process: Process, history: History, measured: LaterMeasurement
) -> None:
    process.events.keep(LaterMeasurement.KERNELS)
    process.events.keep(measured)
    process.train(steps=5)
    assert (history.owner, history.starts) == ("ring", 1)  # power and clock have not settled
    settle(process, LONG)
    assert (history.owner, history.kept_with[-1], process.failures.has_stacks) == ("ring", "state", True)
    torch.nn.Identity()(1)
    assert not history.owner
    process.train(allocations=LONG, steps=5)
    assert (history.owner, history.kept_with[-1]) == ("ring", "state")
    process.events.take_out()


def test_after_the_measured_steps_it_may_take_more_of_a_step(process: Process, history: History) -> None:
    process.events.keep(LaterMeasurement.STEPS)
    settle(process, BETWEEN_LIMITS)
    process.events.keep(LaterMeasurement.NOTHING)
    torch.nn.Identity()(1)
    assert not history.owner
    process.train(allocations=BETWEEN_LIMITS)
    torch.nn.Identity()(1)
    assert history.is_plain
    process.events.take_out()


def test_the_stacks_end_with_the_measured_steps(process: Process, history: History) -> None:
    """What takes stacks begins anew then, and the ring has no more of them than it says."""
    process.reserved_bytes = 41 * GIB
    process.events.keep(LaterMeasurement.STEPS)
    settle(process, LONG)
    assert history.kept_with[-1] == "state"
    process.late.budget.spend(10 * MOST_NS)
    process.now_ns += 1
    process.events.keep(LaterMeasurement.NOTHING)
    process.late.budget.spend(10 * MOST_NS)
    process.train(allocations=LONG)
    assert history.is_plain
    process.events.take_out()


def test_events_are_kept_where_they_take_hardly_any_time(process: Process, history: History) -> None:
    allocations = 1_000
    step_ns = round(2 * allocations * EVENT_NS / RING_FRAC[LaterMeasurement.STEPS])
    plain = Process(process.directory, takes_stacks=False)
    plain.events.keep(LaterMeasurement.STEPS)
    settle(plain)
    assert not history.owner
    plain.train(round(0.9 * step_ns), allocations, steps=20)
    plain.train(10 * step_ns, allocations)  # a pause of gpuledger lies between two ends
    assert history.starts == 1
    plain.train(round(1.1 * step_ns), allocations, steps=2)
    assert (history.owner, history.starts) == ("ring", 2)
    plain.train(round(1.1 / STAYS_FRAC * step_ns), allocations, steps=20)
    assert (history.owner, history.starts) == ("ring", 2)
    plain.train(round(0.9 / STAYS_FRAC * step_ns), allocations, steps=2)
    assert (history.owner, history.starts) == ("", 2)
    plain.events.take_out()


def test_the_ring_stays_where_steps_are_long(process: Process, history: History) -> None:
    process.events.keep(LaterMeasurement.STEPS)
    process.train(1_000_000_000, 1_000, steps=5)
    assert (history.owner, history.starts) == ("ring", 1)
    process.events.take_out()


@pytest.mark.parametrize(("limit_frac", "reserved_gib", "is_on"), [(1.0, 39, False), (1.0, 41, True), (0.1, 5, True)])
def test_events_are_kept_where_memory_is_scarce(
    process: Process,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    limit_frac: float,
    reserved_gib: int,
    is_on: bool,
) -> None:
    monkeypatch.setattr(torch_private, "memory_fraction", lambda _device: limit_frac)
    process.events.keep(LaterMeasurement.STEPS)
    settle(process)
    process.reserved_bytes = reserved_gib * GIB
    process.train()
    torch.nn.Identity()(1)
    assert history.is_plain is is_on
    process.events.take_out()


def test_a_limit_that_the_program_sets_counts_within_a_second(
    process: Process, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.events.keep(LaterMeasurement.STEPS)
    settle(process)
    process.reserved_bytes = 5 * GIB
    process.train()
    monkeypatch.setattr(torch_private, "memory_fraction", lambda _device: 0.1)
    process.train(steps=99)
    torch.nn.Identity()(1)
    assert history.is_plain
    process.events.take_out()


def test_stacks_have_less_time_while_steps_are_measured(process: Process) -> None:
    """Power and clock settle first, and the first steps of a short program are there."""
    process.events.keep(LaterMeasurement.STEPS)
    assert MEASURED_MOST_NS < process.late.budget.left_ns() <= FIRST_NS
    process.now_ns += SETTLING_NS
    assert 0 < process.late.budget.left_ns() <= MEASURED_MOST_NS
    process.late.budget.spend(MEASURED_MOST_NS)
    process.now_ns += 1_000_000_000
    assert process.late.budget.left_ns() == pytest.approx(MEASURED_FRAC * 1e9, rel=0.3)
    process.events.keep(LaterMeasurement.NOTHING)
    assert MEASURED_MOST_NS < process.late.budget.left_ns() <= FIRST_NS
    process.events.take_out()


def test_the_ring_brings_no_more_time_for_stacks(process: Process, history: History) -> None:
    process.events.keep(LaterMeasurement.STEPS)
    settle(process)
    process.reserved_bytes = 41 * GIB
    process.train()
    assert history.owner == "ring"
    assert process.late.budget.left_ns() <= MEASURED_MOST_NS
    process.events.take_out()


def test_no_whole_step_has_stacks_while_steps_are_measured(process: Process, history: History) -> None:
    process.reserved_bytes = 41 * GIB
    process.events.keep(LaterMeasurement.STEPS)
    process.train(allocations=20, steps=60)
    assert history.owner == "ring"
    assert "alloc" not in history.kept_with
    process.events.take_out()


def test_without_stacks_in_the_settings_the_history_is_off_while_steps_are_measured(
    history: History, process: Process, tmp_path: Path
) -> None:
    plain = Process(tmp_path, takes_stacks=False)
    plain.events.keep(LaterMeasurement.STEPS)
    settle(plain)
    assert not history.owner
    plain.train(1_000_000_000, steps=2)
    assert history.is_plain
    plain.events.take_out()


def test_short_steps_are_decided_together(process: Process, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decided of a step's time and allocations is the same as if each was decided alone."""
    monkeypatch.setattr(last_events, "DECIDE_NS", DECIDE_NS)
    plain = Process(process.directory, takes_stacks=False)
    step_ns, decide, decided = DECIDE_NS // 10, plain.events._decide, list[int]()
    monkeypatch.setattr(plain.events, "_decide", lambda end_ns, steps: decided.append(steps) or decide(end_ns, steps))
    plain.events.keep(LaterMeasurement.STEPS)
    allocations = round(RING_FRAC[LaterMeasurement.STEPS] * step_ns / (2 * EVENT_NS))
    plain.train(step_ns, round(1.1 * allocations), steps=1_000)
    assert (history.owner, decided) == ("", [1, *[10] * 99])
    plain.train(step_ns, round(0.9 * allocations), steps=30)
    assert history.owner == "ring"
    plain.events.take_out()


def test_stacks_end_with_the_step_also_of_short_steps(
    process: Process, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_events, "DECIDE_NS", DECIDE_NS)
    process.events.keep(LaterMeasurement.NOTHING)
    process.train(1_000_000, 20, steps=2_000)
    assert process.late.whole_steps
    before = process.late.stacks
    assert before <= 20 * process.late.whole_steps + 20 * 2_000 // 10
    process.events.take_out()


def test_the_first_short_steps_end_with_stacks_and_later_ones_while_time_is_left(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program can fail after its last step. Its stacks are those that began with the end of this step."""
    monkeypatch.setattr(last_events, "DECIDE_NS", DECIDE_NS)
    process.events.keep(LaterMeasurement.NOTHING)
    step_ns, ends = 3_000_000, list[bool]()
    for _ in range(1_500):
        process.train(step_ns, 20, steps=1)
        ends.append(process.late.taken is not Taken.NEVER)
    first = (FIRST_NS - RESERVED_NS) // LOOK_NS
    assert all(ends[: first // 2])
    assert sum(ends[-500:]) <= 500 * step_ns * (1 / DECIDE_NS + SHARE_FRAC / LOOK_NS) + 2
    process.events.take_out()


def test_short_steps_whose_time_is_measured_end_with_stacks_as_long_as_these_cost_little(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time is left for whole steps while steps are measured, since these have no stacks then."""
    monkeypatch.setattr(last_events, "DECIDE_NS", DECIDE_NS)
    process.events.keep(LaterMeasurement.STEPS)
    step_ns, ends = 1_000_000, list[bool]()
    settling = SETTLING_NS // step_ns
    for _ in range(settling + 1_000):
        process.train(step_ns, 20, steps=1)
        ends.append(process.late.taken is not Taken.NEVER)
    assert all(ends[settling + 1 : settling + MEASURED_MOST_NS // LOOK_NS // 2])
    share = 1 / DECIDE_NS + MEASURED_FRAC / LOOK_NS
    assert sum(ends[-500:]) <= 500 * step_ns * share + 2
    process.events.take_out()


@pytest.mark.parametrize("measured", list(LaterMeasurement))
def test_a_history_of_the_program_has_priority_beside_every_measurement(
    process: Process, history: History, measured: LaterMeasurement
) -> None:
    process.events.keep(measured)
    Watch.latest.give_way()
    history.owner = "program"
    process.train(steps=3)
    for other in LaterMeasurement:
        process.events.keep(other)
        process.train(steps=3)
    assert history.owner == "program"
    process.events.take_out()
