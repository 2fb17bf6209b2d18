"""When passes that nobody asked for are begun: only where they take nothing that the program needs."""

from __future__ import annotations

import json
import math
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from present import present
from torch.profiler import ExecutionTraceObserver

import gpuledger
from gpuledger.analyze.posting.posting import post_rank
from gpuledger.analyze.step import overhead
from gpuledger.analyze.step.overhead import find_overhead
from gpuledger.analyze.step.times import break_down_time
from gpuledger.cards.card import BareCard, SensorReading
from gpuledger.collect.adapter import kineto, torch_private
from gpuledger.collect.passes import energy_cards, time_pass, timing_preconditions
from gpuledger.collect.sampling.energy_meter import EnergyMeter
from gpuledger.model.energy_window import METERED_CARDS

pytestmark = pytest.mark.torch

GIB = 1 << 30


@pytest.fixture
def roomy_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy_cards, "cards_in_use", lambda: [(0, "GPU-a")])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device_idx: (5 * GIB, 80 * GIB))
    for name in timing_preconditions.OUTER_PROFILERS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("roomy_card")
def test_nothing_is_against_a_time_pass_where_there_is_room() -> None:
    assert timing_preconditions.why_no_time_pass(1_000) is None


@pytest.mark.usefixtures("roomy_card")
def test_a_full_card_is_left_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device_idx: (GIB // 2, 80 * GIB))
    assert timing_preconditions.why_no_time_pass(1_000) == "cuda:0 has 512.0 MiB free, which is too little for CUPTI"


@pytest.mark.usefixtures("roomy_card")
def test_a_step_whose_trace_is_too_long_is_not_traced() -> None:
    assert "2,000,000 allocations" in str(timing_preconditions.why_no_time_pass(2_000_000))


@pytest.mark.usefixtures("roomy_card")
def test_a_profiler_around_the_program_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    assert "under another profiler" in str(timing_preconditions.why_no_time_pass(1_000))


@pytest.mark.usefixtures("roomy_card")
@pytest.mark.parametrize(("pool", "held"), [((0, 0), False), ((0, 1), True)])
def test_captured_graphs_are_left_alone(pool: tuple[int, int], held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch_private, "find", lambda name: name)
    monkeypatch.setattr(torch_private, "light_snapshot", lambda: {"segments": [{"segment_pool_id": pool}]})
    assert ("CUDA graphs" in str(timing_preconditions.why_no_time_pass(1_000))) == held


@pytest.mark.parametrize(("captured", "timed"), [((), (4, 6)), ((3, 4), (6, 8)), ((6,), (4, 6))])
def test_no_time_pass_begins_or_ends_in_a_capture(
    captured: tuple[int, ...], timed: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was launched while the pass waits for the capture's end is not in its steps."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with gpuledger.record(out=tmp_path / "run", passes="memory,time", devices="cpu") as recording:
        for number in range(1, 20):
            monkeypatch.setattr(energy_cards, "is_capturing", lambda number=number: number in captured)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    rank = recording.run().rank()
    assert (rank.manifest.time_steps, rank.manifest.notes) == (timed, ())
    times = break_down_time(rank)
    assert times is not None
    assert times.steps == 3


def test_every_pass_has_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    asked = "memory,energy:12,time:4"
    with gpuledger.record(out=tmp_path / "run", steps=(1, 2), passes=asked, devices="cpu") as recording:
        for _ in range(24):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    rank = recording.run().rank()
    assert rank.manifest.time_steps == (3, 6)
    times = break_down_time(rank)
    assert times is not None
    assert (times.steps, times.unprofiled.count) == (4, 12)
    counted = Path("/proc/thread-self/schedstat").exists()
    assert (rank.manifest.cpu_wait_frac is not None) is counted


@pytest.mark.parametrize(
    ("asked", "count", "timed", "is_noted"),
    [
        ("memory,time", 4, (4, 4), True),
        ("memory,time", 5, (4, 5), False),
        ("memory,time", 6, (4, 6), False),
        ("memory,time:4", 6, (4, 6), True),
    ],
)
def test_a_program_that_ends_inside_has_the_times_of_the_steps_there_were(
    asked: str, count: int, timed: tuple[int, int], is_noted: bool, tmp_path: Path
) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with gpuledger.record(out=tmp_path / "run", passes=asked, devices="cpu") as recording:
        for _ in range(count):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    rank = recording.run().rank()
    times = break_down_time(rank)
    assert times is not None
    assert (rank.manifest.time_steps, times.steps) == (timed, timed[1] - timed[0] + 1)
    assert any("cut short" in note for note in rank.manifest.notes) == is_noted


@pytest.mark.parametrize(("at", "timed"), [(2, False), (5, False), (8, True), (18, True)])
def test_a_profiler_of_the_programs_is_whole_wherever_it_is_and_ours_says_so(
    at: int, timed: bool, tmp_path: Path
) -> None:
    """In the recorded steps, in the profiled ones, among the unprofiled ones, after all of them."""
    model, seen = torch.nn.Linear(4, 4), []
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    def profiled() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
            step()
        return sorted({event.key for event in theirs.key_averages()} - {"PythonDispatchMode"})  # our recorder

    with gpuledger.record(out=tmp_path / "run", passes="memory,time", devices="cpu") as recording:
        for number in range(1, 20):
            if number == at:
                seen += profiled()
            else:
                step()
    assert seen == profiled()
    rank = recording.run().rank()
    assert (break_down_time(rank) is not None) == timed
    assert any("its own profiler, and only one can run at a time" in note for note in rank.manifest.notes) == (
        not timed
    )


def test_an_execution_trace_of_the_programs_has_each_operator_once(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)

    def traced(name: str) -> Counter[str]:
        observer = ExecutionTraceObserver()
        observer.register_callback(str(tmp_path / name))
        observer.start()
        model(torch.ones(2, 4)).sum().backward()
        observer.stop()
        observer.unregister_callback()
        nodes = json.loads((tmp_path / name).read_text())["nodes"]
        return Counter(node["name"] for node in nodes if node["name"].startswith("aten::"))

    with gpuledger.record(out=tmp_path / "run", devices="cpu"):
        model(torch.ones(2, 4)).sum().backward()
        model.zero_grad()
        during = traced("during.json")
    model.zero_grad()
    assert during["aten::mm"] == 1
    assert during == traced("after.json")


def test_a_time_pass_is_of_the_thread_that_began_it_and_other_threads_steps_only_count(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4).eval()

    def call() -> None:
        with torch.no_grad():
            model(torch.ones(2, 4))

    with (
        ThreadPoolExecutor(1) as others,
        ThreadPoolExecutor(1) as most,
        gpuledger.record(out=tmp_path / "run", passes="memory,time", devices="cpu") as recording,
    ):
        for number in range(1, 20):
            (others if number in (4, 5, 6) else most).submit(call).result()
    rank = recording.run().rank()
    assert rank.manifest.time_steps == (4, 7)
    assert not [note for note in rank.manifest.notes if "pass" in note]
    times = break_down_time(rank)
    assert times is not None
    assert times.steps == 1


def why_not_in_another_thread() -> str:
    with ThreadPoolExecutor(1) as other:
        return str(other.submit(timing_preconditions.why_no_time_pass, 10).result())


@pytest.mark.usefixtures("roomy_card")
@pytest.mark.parametrize("on_gpu", [False, True])
def test_another_thread_is_timed_if_torch_says_nothing_about_it(monkeypatch: pytest.MonkeyPatch, on_gpu: bool) -> None:
    monkeypatch.setattr(torch_private, "has_cuda_context", lambda: on_gpu)
    assert why_not_in_another_thread() == "None"
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    assert "prints errors" in why_not_in_another_thread()
    assert "thread" not in str(timing_preconditions.why_no_time_pass(10))


@pytest.mark.parametrize(("first", "timed"), [(4, (6, 8)), (5, (4, 5)), (6, (4, 6)), (9, (4, 6))])
def test_a_thread_that_ends_ends_the_timing(tmp_path: Path, first: int, timed: tuple[int, int]) -> None:
    """The profiler is its own. What two steps have shown is kept, and after fewer, the next thread is measured."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    with gpuledger.record(out=tmp_path / "run", passes="memory,time", devices="cpu") as recording:
        for steps in (first, 12):
            thread = threading.Thread(target=train, args=(steps,))
            thread.start()
            thread.join()
    rank = recording.run().rank()
    assert rank.manifest.time_steps == timed
    assert break_down_time(rank) is not None
    assert [note for note in rank.manifest.notes if "another thread" in note] == []


@pytest.mark.parametrize(("long_steps", "timed"), [((4,), (5, 7)), ((4, 5), None)])
def test_a_step_that_goes_on_and_on_is_not_kept_in_memory(
    long_steps: tuple[int, ...], timed: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation lies in a step that only the next optimizer ends; the pass begins anew after it, once."""
    monkeypatch.setattr(time_pass, "CALLS", 50)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    with gpuledger.record(out=tmp_path / "run", passes="memory,time", devices="cpu") as recording:
        for number in range(1, 20):
            for _ in range(40 if number in long_steps else 0):
                model(torch.ones(2, 4))
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    rank = recording.run().rank()
    assert rank.manifest.time_steps == timed
    assert [note for note in rank.manifest.notes if "stopped it 2 times" in note] == list(rank.manifest.notes)
    assert (break_down_time(rank) is None) == (timed is None) == bool(rank.manifest.notes)


def test_a_program_that_is_killed_inside_the_time_pass_is_told(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with gpuledger.record(out=tmp_path / "run", passes="memory,time", devices="cpu") as recording:
        for number in range(1, 20):
            if number == 5:
                shutil.copytree(present(recording.path) / "rank-0", tmp_path / "killed" / "rank-0")
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    killed, ended = post_rank(tmp_path / "killed" / "rank-0"), recording.run().rank().manifest
    assert [note for note in killed.notes if note.startswith("The timing measurement was cut off")]
    assert ended.notes == ()
    assert "time_pass_open" not in {*killed.to_json(), *ended.to_json()}


@pytest.mark.parametrize("trains", [True, False])
def test_operators_are_recorded_in_the_first_step_alone_on_a_card(
    trains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no kernels here to be recorded in the others, and nothing of ours is on the modules in them."""

    theirs = kineto.Profiler.leave_out_operators

    def leave_out_operators(profiler: kineto.Profiler) -> bool:
        assert not theirs(profiler)
        profiler._profile.use_device = "cuda"  # torch sets it on a machine with a GPU alone
        left_out = theirs(profiler)
        profiler._profile.use_device = None
        return left_out

    monkeypatch.setattr(kineto.Profiler, "leave_out_operators", leave_out_operators)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters()) if trains else None
    bare = torch.nn.Module.__call__.__code__
    with gpuledger.record(out=tmp_path / "run", passes="memory,time:3", devices="cpu") as recording:
        for _ in range(1, 20):
            with torch.set_grad_enabled(trains):
                loss = model(torch.ones(2, 4)).sum()
            if optimizer is not None:
                loss.backward()
                optimizer.step()
    assert torch.nn.Module.__call__.__code__ is bare
    with torch.autograd.profiler.profile() as theirs_after:
        torch.ones(2) * 3
    assert "aten::mul" in {event.key for event in theirs_after.key_averages()}
    rank = recording.run().rank()
    assert (rank.manifest.time_steps, present(rank.manifest.kernels_alone).from_step) == ((4, 6), 5)
    times = break_down_time(rank)
    assert times is not None
    assert times.steps == 1
    assert {account.module for account in times.accounts} >= {"0"}
    monkeypatch.setattr(overhead, "UNEVEN_RATIO", math.inf)  # such short steps differ by chance
    cost = find_overhead(rank)
    assert cost.profiled_operators_step_frac is not None
    assert cost.profiled_step_frac is not None


class Event:
    """An event of a stream that waits for another rank."""

    def record(self, stream: object) -> None:
        """Nothing is reached."""

    def query(self) -> bool:
        return False


def test_a_rank_waits_for_its_own_stream_and_not_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(energy_cards, "LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(energy_cards, "is_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device_idx: None)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(energy_cards, "runs_with_others", lambda: True)
    energy_cards.wait_for([(0, "GPU-a"), (-1, "GPU-b")])
    assert waited == []
    monkeypatch.setattr(energy_cards, "runs_with_others", lambda: False)
    energy_cards.wait_for([(0, "GPU-a"), (-1, "GPU-b")])
    assert waited == [0]


class Card(BareCard):
    """What of a GPU says whether its energy can be read."""

    def __init__(self, uuid: str, power_w: float | None, energy_mj: int | None) -> None:
        super().__init__(0, "Some", uuid)
        self._power_w, self._energy_mj = power_w, energy_mj

    def read_sensors(self) -> SensorReading:
        return SensorReading(self._power_w)

    def read_energy_mj(self) -> int | None:
        return self._energy_mj


def test_the_program_knows_which_cards_are_read_while_somebody_reads_them(tmp_path: Path) -> None:
    cards = [Card("GPU-counter", None, 7), Card("GPU-power", 80.0, None), Card("GPU-neither", None, None)]
    assert energy_cards.metered_cards(tmp_path) == frozenset()
    with EnergyMeter(tmp_path, list(cards), until_end=False, pid=lambda: None) as meter:
        meter.start()
        assert energy_cards.metered_cards(tmp_path) == {"GPU-counter", "GPU-power"}
    assert not (tmp_path / METERED_CARDS).exists()
    (tmp_path / METERED_CARDS).write_text(json.dumps([])[:1])
    assert energy_cards.metered_cards(tmp_path) == frozenset()


def test_a_program_that_leaves_its_gpu_alone_gets_no_profiler_that_loads_cupti(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(energy_cards, "has_driver", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "would load CUPTI" in str(timing_preconditions.why_no_time_pass(10))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert timing_preconditions.why_no_time_pass(10) is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(energy_cards, "has_driver", lambda: False)
    assert timing_preconditions.why_no_time_pass(10) is None


def test_the_end_of_the_timing_measurement_waits_before_its_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU finishes the program's own work meanwhile, which takes as long without a recording."""
    waits_ns: list[int] = []
    monkeypatch.setattr(energy_cards, "wait_for", lambda _cards: waits_ns.append(time.time_ns()))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with gpuledger.record(out=tmp_path / "run", passes="memory,time", devices="cpu") as recording:
        for _ in range(6):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    assert waits_ns
    last = max(pause.start_ns for pause in recording.run().rank().manifest.pauses if pause.reason == "time")
    assert last >= waits_ns[-1]
