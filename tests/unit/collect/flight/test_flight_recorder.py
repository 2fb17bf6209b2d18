"""The ring of the allocator's last events: when it is on, and whom it gives way to. Rows per step and their size."""

from __future__ import annotations

import functools
import io
import itertools
import mmap
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from failing_allocator import FACTS, MIB, Recorded, counters, snapshot
from memory_history import History, Watch, history
from present import present

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.flight import census, flight_recorder, step_counters
from gpuledger.collect.flight.flight_recorder import FlightRecorder
from gpuledger.collect.flight.host_memory import HostMemory, resident_bytes
from gpuledger.collect.flight.late_stacks import LateStacks
from gpuledger.collect.flight.step_counters import CudaCounters, DeviceCounters, StepCounters, held_bytes
from gpuledger.model.journal.columns import COLUMNS
from gpuledger.model.journal.journal import Part

__all__ = ["history"]


RECORDERS: list[FlightRecorder] = []


@pytest.fixture(autouse=True)
def nothing_is_left(history: History) -> Iterator[None]:
    """Take out the observers of a test that has failed, or they would be called in the tests after it."""
    yield
    for one in RECORDERS:
        one.take_out()
    RECORDERS.clear()


@pytest.fixture(autouse=True)
def equal_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a µs between any two looks at the clock: on a busy machine, the time for stacks would be spent at once."""
    clock = itertools.count(0, 1000).__next__
    monkeypatch.setattr(flight_recorder, "LateStacks", functools.partial(LateStacks, clock=clock))


def recorder_in(directory: Path, *, takes_stacks: bool = False) -> FlightRecorder:
    journal = RankJournal(lambda: directory, [])
    found = FlightRecorder(journal, ModuleRegistry(), StackTable(), Guard(lambda error: pytest.fail(str(error))))
    found.begin(lambda: None, on_card=True, takes_stacks=takes_stacks)
    RECORDERS.append(found)
    return found


def test_the_ring_is_on_from_the_end_of_the_measurements_to_the_end(history: History, tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.step_ended(1, 10)
    assert not history.starts
    recorder.take_over(13)
    assert history.owner == "ring"
    recorder.step_ended(14, 20)
    recorder.finish(14)
    assert not history.owner


def test_what_has_grown_since_the_recorded_steps_is_told_at_an_error(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program can end in an error before the first census after the measurements."""
    monkeypatch.setattr(torch_private, "light_snapshot", lambda: snapshot([40 * MIB], []))
    monkeypatch.setattr(torch_private, "memory_fraction", lambda _device: 1.0)
    monkeypatch.setattr(census, "NAMES_NS", 10**10)  # also in a process with many names
    monkeypatch.setattr(census, "BUDGET_NS", 10**10)
    recorder = recorder_in(tmp_path)
    history.stop()
    outputs: list[torch.Tensor] = []
    recorder.step_ended(3, 10)
    recorder.recording_ended(3)
    outputs += [torch.zeros(1 << 20) for _ in range(9)]
    monkeypatch.setattr(torch_private, "memory_stats", lambda _device: counters(116 * MIB))
    recorder.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 12)
    holder = present(recorder._journal.part.facts["failure_census"]["holder"])
    assert (holder["kind"], holder["name"], holder["more"]) == ("list", "outputs", 9)


def test_a_history_of_the_program_is_not_touched(history: History, tmp_path: Path) -> None:
    history.owner = "program"
    recorder = recorder_in(tmp_path)
    recorder.take_over(13)
    recorder.step_ended(14, 20)
    recorder.finish(14)
    assert history.owner == "program"
    assert not history.starts


def test_the_ring_gives_way_and_does_not_come_back(history: History, tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.take_over(13)
    Watch.latest.give_way()
    assert not history.owner
    recorder.step_ended(14, 20)
    assert history.starts == 1


def test_the_ring_comes_back_after_a_recording_on_demand(history: History, tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.take_over(13)
    history.stop()  # as such a recording does when it ends
    recorder.step_ended(14, 20)
    assert (history.owner, history.starts) == ("ring", 2)


def test_stacks_are_taken_from_the_end_of_the_measurements_on_if_the_settings_want_them(
    history: History, tmp_path: Path
) -> None:
    recorder = recorder_in(tmp_path, takes_stacks=True)
    recorder.step_ended(13, 20)
    recorder.take_over(13)
    assert history.kept_with == [None, "state"]
    torch.nn.Identity()(1)
    assert history.kept_with == [None, "state", None]
    recorder.step_ended(14, 30)
    assert history.kept_with == [None, "state", None, "state"]
    history.stop()  # a recording on demand has ended
    recorder.step_ended(15, 40)
    assert history.kept_with[-2:] == [None, "state"]
    Watch.latest.give_way()
    before = len(history.kept_with)
    torch.nn.Identity().eval()(1)
    recorder.step_ended(16, 50)
    recorder.finish(16)
    torch.nn.Identity().eval()(1)
    assert len(history.kept_with) == before


def test_without_stacks_in_the_settings_none_are_taken(history: History, tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.take_over(13)
    recorder.step_ended(14, 30)
    recorder.finish(14)
    assert history.kept_with == [None]


def test_a_row_has_at_most_40_bytes() -> None:
    assert sum(np.dtype(kind).itemsize for kind in COLUMNS["step_memory"].values()) == 37


def test_a_day_of_steps_takes_a_few_mb(tmp_path: Path) -> None:
    steps, chance = 86_400, random.Random(1)
    recorded = Recorded(tmp_path)

    def of_a_step() -> list[DeviceCounters]:
        sizes = ((5 << 30) + chance.randrange(1 << 28), 7 << 30, (6 << 30) + chance.randrange(1 << 28))
        return [DeviceCounters(0, *sizes, 400 + chance.randrange(9), chance.randrange(1 << 30), 0)]

    counters = StepCounters(of_a_step, lambda: (3 << 30) + chance.randrange(1 << 22))
    recorded.journal.sources.append(counters)
    started_ns = time.time_ns()
    for step in range(1, steps + 1):
        counters.read(step, started_ns + step * 1_000_000_000)
        if counters.rows >= flight_recorder.WRITE_ROWS:
            recorded.journal.append()
    rank = recorded.rank()
    assert rank.table("step_memory").num_rows == steps
    assert sum(one.stat().st_size for one in recorded.rank_directory.rglob("*") if one.is_file()) < 8 * MIB


def test_counters_of_a_step_are_stored_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = StepCounters(lambda: [DeviceCounters(3, 1, 513, 1 << 50, 7, (1 << 31) + 5, 2)], lambda: 4097)
    rows.read(9, 1 << 62)
    part = Part()
    rows.drain(part)
    (stored,) = part.rows["step_memory"]
    assert {name: list(column) for name, column in stored.items() if name != "end_ms"} == {
        **{"device_idx": [3], "step": [9], "allocated": [1], "reserved": [2], "peak": [(1 << 31) - 1]},
        **{"blocks": [7], "allocations": [5], "retries": [2], "host": [2]},
    }
    rows.drain(part)
    assert len(part.rows["step_memory"]) == 1


@pytest.mark.parametrize(("took_ns", "reads"), [(0, 100), (20_000, 100), (200_000, 10), (2_000_000, 1)])
def test_reading_host_memory_takes_a_small_share_of_the_time(took_ns: int, reads: int) -> None:
    now_ns, read = 0, []

    def read_host() -> int:
        nonlocal now_ns
        now_ns += took_ns
        read.append(now_ns)
        return len(read)

    counters = StepCounters(lambda: [DeviceCounters(0)], read_host, host_frac=0.002, clock=lambda: now_ns)
    for step in range(1_000):
        counters.read(step, (1 << 60) + step * 1_000_000)
    assert len(read) == counters.host_bytes == reads
    assert counters.rows == 1_000


@pytest.mark.parametrize("rises", [True, False])
def test_the_peak_of_resident_memory_is_that_of_the_whole_time(rises: bool, tmp_path: Path) -> None:
    """A program without steps has two reads of it, or one. What was used before the recording is no part of it."""
    journal = RankJournal(lambda: tmp_path, [])
    Path("/proc/self/clear_refs").write_text("5")  # the highest value is the present one from now on
    if not rises:
        _use_and_free()
    memory, before = HostMemory(), present(resident_bytes(os.getpid()))
    if rises:
        _use_and_free()
    memory.write_facts(journal)
    resident = next(one for one in journal.part.facts["host_memory"] if one["kind"] == "resident")
    assert (resident["peak_bytes"] - before > 48 * MIB) is rises
    assert resident["bytes"] - before < 32 * MIB


def _use_and_free() -> None:
    with mmap.mmap(-1, 64 * MIB) as pages:
        for start in range(0, 64 * MIB, mmap.PAGESIZE):
            pages[start] = 1


@pytest.mark.parametrize(
    ("flags", "of_file"), [(mmap.MAP_SHARED, True), (mmap.MAP_SHARED, False), (mmap.MAP_PRIVATE, False)]
)
def test_pages_of_files_are_not_held(flags: int, of_file: bool) -> None:
    """The kernel loads and drops these at any time. Pages without a file are the program's, also shared ones."""
    size, library = 16 * MIB, Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    protection = mmap.PROT_READ if of_file else mmap.PROT_READ | mmap.PROT_WRITE
    with library.open("rb") as file, mmap.mmap(file.fileno() if of_file else -1, size, flags, protection) as pages:
        before = held_bytes(), present(resident_bytes(os.getpid()))
        for start in range(0, size, mmap.PAGESIZE):
            if of_file:
                assert pages[start] >= 0
            else:
                pages[start] = 1
        after = held_bytes(), present(resident_bytes(os.getpid()))
    assert after[0] - before[0] == pytest.approx(0 if of_file else size, abs=4 * MIB)
    assert after[1] - before[1] == pytest.approx(size, abs=4 * MIB)


def test_where_the_kernel_does_not_divide_resident_memory_all_of_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/self/status": b"Name:\tpython\nVmRSS:\t4096 kB\nThreads:\t1\n", "/proc/self/statm": b"9 5 1 0\n"}
    monkeypatch.setattr(step_counters, "own_open", lambda path, *_args, **_options: io.BytesIO(texts[path]))
    assert held_bytes() == 5 * mmap.PAGESIZE
    texts["/proc/self/status"] += b"RssAnon:\t 8 kB\nRssFile:\t 64 kB\nRssShmem:\t 4 kB\nVmSwap:\t 1 kB\n"
    assert held_bytes() == 13 << 10


def test_only_devices_in_use_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def stats(device_idx: int) -> dict[str, Any]:
        asked.append(device_idx)
        return counters(MIB) if device_idx == 1 else counters(0, allocations=0)

    monkeypatch.setattr(torch_private, "memory_stats", stats)
    read = CudaCounters(4)
    assert [one.device_idx for one in read()] == [1]
    asked.clear()
    read()
    assert asked == [1]
