"""The energy pass in this process: what it leaves while it is open, when it ends early, and when it is cut off."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuledger.analyze.posting.energy_posting import post_energy  # noqa: E402
from gpuledger.analyze.step.energy import break_down_energy  # noqa: E402 - it needs torch to be there
from gpuledger.collect.attribution.rank_journal import RankJournal  # noqa: E402
from gpuledger.collect.passes import energy_cards, energy_pass  # noqa: E402
from gpuledger.collect.passes.energy_pass import EnergyPass  # noqa: E402
from gpuledger.model.energy_window import ENERGY_MARKER  # noqa: E402
from gpuledger.model.journal.reading import read_journal  # noqa: E402
from gpuledger.model.manifest import read_rank_manifest  # noqa: E402
from gpuledger.model.run import Rank  # noqa: E402
from gpuledger.model.run_directory import write_json  # noqa: E402

pytestmark = pytest.mark.torch


class Steps:
    """Counts steps as they are told."""

    def __init__(self) -> None:
        self.seen = 3
        self.prepared = 0
        self.optimizer = SimpleNamespace(training=0)

    def restart_clock(self) -> None:
        """Do nothing: nobody asks for a step's time."""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[EnergyPass, Steps, RankJournal, Path]]:
    """A pass that has begun on a GPU that is not there, without waiting anywhere."""
    monkeypatch.setattr(energy_cards, "cards_in_use", lambda: [(-1, "GPU-none")])
    for name in ("IDLE_S", "SETTLE_NS", "LENGTH_NS", "RUN_OUT_NS"):
        monkeypatch.setattr(energy_pass, name, 0)
    place = tmp_path / "rank-0"
    journal, steps = RankJournal(lambda: place, []), Steps()
    one = EnergyPass(journal, steps, journal.note)  # type: ignore[arg-type]
    one.begin()
    yield one, steps, journal, place
    one.take_out()
    assert not (place / ENERGY_MARKER).exists()


def run_steps(one: EnergyPass, steps: Steps, count: int) -> bool:
    for _ in range(count):
        steps.seen += 1
        if one.end_step():
            return True
    return False


def facts_of(place: Path) -> dict[str, Any]:
    return read_journal(place / "journal").facts


def test_an_open_pass_names_its_cards_and_a_closed_one_leaves_nothing(opened: Any) -> None:
    one, steps, journal, place = opened
    assert json.loads((place / ENERGY_MARKER).read_text()) == {"cards": ["GPU-none"]}
    assert run_steps(one, steps, 12)
    assert not one.is_open
    assert not (place / ENERGY_MARKER).exists()
    journal.write()
    facts = facts_of(place)["energy_pass"]
    assert (facts["first_step"], facts["last_step"]) == (5, 14)
    [(idle_from_ns, _)] = facts["idle_ns"]
    assert idle_from_ns >= facts["end_ns"]
    assert facts["start_ns"] <= facts["end_ns"]


def test_ranks_start_after_the_same_step_though_their_clocks_differ(
    opened: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, steps, journal, place = opened
    other_journal, other_steps = RankJournal(lambda: tmp_path / "rank-1", []), Steps()
    other = EnergyPass(other_journal, other_steps, other_journal.note)  # type: ignore[arg-type]
    now_ns = time.time_ns()
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: now_ns + (1 << 60))
        other.begin()
    monkeypatch.setattr(energy_cards, "runs_with_others", lambda: True)
    monkeypatch.setattr(energy_pass, "LENGTH_NS", 1 << 60)
    for _ in range(40):
        assert not run_steps(other, other_steps, 1)  # it is always the first to be asked
        assert not run_steps(first, steps, 1)
    for one in (first, other):
        one.finish()
    for kept in (journal, other_journal):
        kept.write()
    starts = [facts_of(rank)["energy_pass"]["first_step"] for rank in (place, tmp_path / "rank-1")]
    assert starts == [4 + energy_pass.AHEAD_STEPS + 1] * 2
    assert not [place for place in tmp_path.iterdir() if place.name not in ("rank-0", "rank-1")]


def test_a_program_that_ends_inside_keeps_the_steps_there_were(opened: Any) -> None:
    one, steps, journal, place = opened
    run_steps(one, steps, 5)
    one.finish()
    one.finish()
    assert journal.part.notes == [
        note for note in journal.part.notes if "was cut short" in note and "after 4 of" in note
    ]
    journal.write()
    assert facts_of(place)["energy_pass"]["last_step"] == 8


def test_the_interval_starts_again_after_a_step_that_compiled(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, steps, journal, place = opened
    count = 3
    monkeypatch.setattr("gpuledger.collect.adapter.dynamo.compilations", lambda: count)
    assert not run_steps(one, steps, 4)
    count = 5
    assert not run_steps(one, steps, 4)
    assert run_steps(one, steps, 12)
    journal.write()
    assert facts_of(place)["energy_pass"]["first_step"] == 9


def test_the_interval_starts_again_after_a_step_that_captured_a_graph_or_was_the_first_replay(opened: Any) -> None:
    one, steps, journal, place = opened
    assert not run_steps(one, steps, 4)
    for _ in range(2):
        steps.prepared = steps.seen + 1
        assert not run_steps(one, steps, 4)
    assert run_steps(one, steps, 12)
    journal.write()
    assert facts_of(place)["energy_pass"]["first_step"] == 13


def test_a_program_that_compiles_in_every_step_has_an_interval(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, steps, journal, place = opened
    monkeypatch.setattr("gpuledger.collect.adapter.dynamo.compilations", lambda: steps.seen)
    assert run_steps(one, steps, 40)
    journal.write()
    assert facts_of(place)["energy_pass"]["first_step"] == 4 + energy_pass.MOST_STARTS


def test_a_program_that_ends_before_the_first_step_has_no_pass(opened: Any) -> None:
    one, _, journal, place = opened
    one.finish()
    settle_s = energy_pass.SETTLE_NS / 1e9
    assert journal.part.notes == [
        f"No energy measurement: it begins after {settle_s:.1f} s of unprofiled steps, and the program ended first."
    ]
    journal.write()
    assert facts_of(place)["energy_pass"] is None


@pytest.mark.parametrize(("before", "kept"), [(5, [5, 8]), (1, None)])
def test_another_training_ends_the_measurement_with_the_last_step_of_its_own(
    before: int, kept: list[int] | None, opened: Any
) -> None:
    """It is known when another optimizer has made its first step. Until then, the program may have done anything."""
    one, steps, journal, place = opened
    assert not run_steps(one, steps, before)
    steps.optimizer.training = 1
    assert run_steps(one, steps, 1)
    assert not one.is_open
    assert [("another training began" in note) for note in journal.part.notes] == [True]
    journal.write()
    edges = facts_of(place)["energy_pass"]
    assert (None if edges is None else [edges["first_step"], edges["last_step"]]) == kept
    assert not (place / ENERGY_MARKER).exists()


def test_a_program_that_was_killed_inside_is_told_and_has_no_joules(opened: Any) -> None:
    *_, place = opened
    write_json(place / "manifest.json", {"schema_version": 1, "notes": [], **facts_of(place)})
    post_energy(place.parent)
    post_energy(place.parent)
    manifest = read_rank_manifest(place)
    assert ["cut off" in note for note in manifest.notes] == [True]
    assert break_down_energy(Rank(0, place, manifest)) is None


@pytest.mark.parametrize(("trainings", "from_step"), [([], None), ([[1, 0], [9, 1]], 9), ([[1, 0], [7, 1]], 8)])
def test_a_note_says_from_which_step_on_another_training_was_measured(
    trainings: list[list[int]], from_step: int | None, tmp_path: Path
) -> None:
    place = tmp_path / "rank-0"
    place.mkdir()
    edges = {"cards": [[-1, "GPU-none"]], "first_step": 8, "last_step": 12, "start_ns": 1, "end_ns": 2, "idle_ns": []}
    facts = {"energy_pass": edges, "time_steps": [4, 6], "trainings": trainings}
    write_json(place / "manifest.json", {"schema_version": 1, "notes": [], **facts})
    post_energy(tmp_path)
    told = [note for note in read_rank_manifest(place).notes if "another optimizer" in note]
    text = f"The energy of steps 8 to 12 was measured. From step {from_step} on, another optimizer steps."
    assert told == ([] if from_step is None else [text])


def test_waiting_for_the_programs_own_work_is_not_a_pause(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, steps, journal, place = opened
    waits_ns: list[int] = []
    monkeypatch.setattr(energy_cards, "wait_for", lambda _cards: waits_ns.append(time.time_ns()))
    assert run_steps(one, steps, 12)
    journal.write()
    pauses = read_journal(place / "journal").tables["pauses"]
    assert len(waits_ns) >= 3
    for start_ns, duration_ns in zip(pauses["start_ns"].tolist(), pauses["duration_ns"].tolist(), strict=True):
        assert not any(start_ns <= wait_ns < start_ns + duration_ns for wait_ns in waits_ns)


class SimulatedGpu:
    """A GPU that finishes launched work later than the CPU launches it. Times are in Unix ns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_ns = 0
        """When the GPU has finished all launched work."""
        self.queries = 0
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.reached_ns = 0

            def record(self, stream: object) -> None:
                self.reached_ns = max(gpu.free_ns, time.time_ns())

            def query(self) -> bool:
                gpu.queries += 1
                return time.time_ns() >= self.reached_ns

            def elapsed_time(self, end: Event) -> float:
                return (end.reached_ns - self.reached_ns) / 1e6

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device_idx: None)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device_idx: None)
        monkeypatch.setattr(energy_cards, "cards_in_use", lambda: [(0, "GPU-simulated")])

    def launch(self, duration_ns: int) -> None:
        self.free_ns = max(self.free_ns, time.time_ns()) + duration_ns


def interrupted(opened: Any, gpu: SimulatedGpu, step_ns: int) -> dict[str, Any]:
    """Return what is stored of a measurement if the program ends after four queued steps."""
    one, steps, journal, place = opened
    one.take_out()
    one.begin()
    steps.seen += 1
    assert not one.end_step()
    for _ in range(4):
        gpu.launch(step_ns)
        steps.seen += 1
        assert not one.end_step()
    gpu.queries = 0
    one.finish()
    journal.write()
    found: dict[str, Any] = facts_of(place)["energy_pass"]
    return found


def test_an_interrupted_measurement_ends_when_the_gpu_has_finished_its_steps(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimulatedGpu(monkeypatch)
    facts = interrupted(opened, gpu, 20_000_000)
    assert facts["end_ns"] <= gpu.free_ns
    assert facts["end_ns"] - facts["start_ns"] >= 80_000_000
    assert gpu.queries >= 2


def test_a_gpu_that_has_failed_does_not_fail_the_recording(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimulatedGpu(monkeypatch)

    def fail(_: object) -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda.Event, "query", fail)
    facts = interrupted(opened, gpu, 20_000_000)
    assert facts["start_ns"] <= facts["end_ns"] < gpu.free_ns


def test_work_after_the_last_step_is_not_in_an_interrupted_measurement(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimulatedGpu(monkeypatch)
    one = opened[0]
    theirs = one.finish

    def finish() -> None:
        gpu.launch(40_000_000)
        theirs()

    monkeypatch.setattr(one, "finish", finish)
    facts = interrupted(opened, gpu, 1_000_000)
    assert facts["end_ns"] < gpu.free_ns - 30_000_000
