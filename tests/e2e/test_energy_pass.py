"""The energy pass of a recorded program on a scripted GPU: the real binding, two processes, one counter."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from metered import metered, metered_from_python
from present import present

from gpuledger.analyze.step.energy import break_down_energy, share_energy, step_energy
from gpuledger.analyze.step.rates import find_rates
from gpuledger.analyze.step.step_parts import step_parts
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.times import break_down_time
from gpuledger.cli.main import main
from gpuledger.model.energy_window import ENERGY_MARKER, METERED_CARDS
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch


def rank_of(directory: Path) -> Rank:
    return load(directory / "train.ledger").rank(0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Rank:
    """A training with the passes that a user gets, on a GPU of 250 W.

    On a busy machine the launcher, which reads the counter, may have no turn for half a second. And a training that is
    held up between two steps has no rate, because it seems to do other work there: then it is recorded again.
    """
    rank = record_whole(tmp_path_factory.mktemp("whole"))
    for _ in range(4):
        rates = find_rates(rank)
        if rates is not None and rates.sample_energy_j is not None:
            break
        rank = record_whole(tmp_path_factory.mktemp("whole"))
    return rank


def record_whole(directory: Path) -> Rank:
    ended = metered(directory, count=120, length_s=1.2, watts=250, wobble=5)
    assert (ended.status, ended.stdout, ended.stderr) == (0, b"", b"")
    return rank_of(directory)


def test_the_passes_follow_each_other_and_none_is_in_another(whole: Rank) -> None:
    (energy,) = present(whole.manifest.energy)
    assert present(whole.manifest.window).last_step == 3
    assert whole.manifest.time_steps == (4, 6)
    assert 6 < energy.first_step <= energy.last_step - 9
    inside = [p for p in whole.manifest.pauses if energy.start_ns <= p.start_ns < energy.end_ns - 10**6]
    assert inside == []
    assert whole.manifest.notes == ()
    assert not whole.manifest.left_out
    assert not (whole.directory / ENERGY_MARKER).exists()
    assert not (whole.directory.parent / METERED_CARDS).exists()


def test_the_joules_are_the_counters(whole: Rank) -> None:
    (energy,) = present(whole.manifest.energy)
    seconds = (energy.end_ns - energy.start_ns) / 1e9
    assert seconds >= 0.6
    assert energy.energy_j == pytest.approx(250 * seconds, abs=max(3 * present(energy.uncertainty_j), 5))
    assert energy.ticks >= 3
    (window,) = whole.table("windows").to_pylist()
    assert (window["name"], window["energy_j"]) == ("energy", energy.energy_j)
    assert {row["device_idx"] for row in whole.table("samples").to_pylist()} == {-1}
    watts = {row["power_instant_w"] for row in whole.table("samples").to_pylist()}
    assert {245, 250, 255} <= watts


def test_pauses_are_not_in_the_step_time(whole: Rank) -> None:
    times = step_times(whole)
    assert times.median_ns is not None
    assert times.median_ns > 20e6
    assert break_down_time(whole) is not None


def test_a_script_that_ends_inside_the_pass_keeps_what_there_is(tmp_path: Path) -> None:
    asked = "memory,energy,time"
    ended = metered(tmp_path, count=60, length_s=60, passes=asked, no_energy=1, wobble=5, pid=1)
    assert (ended.status, ended.stderr) == (0, b"")
    rank = rank_of(tmp_path)
    (energy,) = present(rank.manifest.energy)
    assert energy.source.startswith("power integrated")
    notes = " ".join(rank.manifest.notes)
    for words in (
        "The energy measurement was cut short",
        "integrated over the samples",
    ):
        assert words in notes
    assert break_down_time(rank) is not None
    assert not (rank.directory / ENERGY_MARKER).exists()


def test_every_joule_has_an_account(whole: Rank) -> None:
    found = break_down_energy(whole)
    assert found is not None
    (energy,) = present(whole.manifest.energy)
    assert found.step_energy_j == pytest.approx(present(energy.energy_j) / (energy.last_step - energy.first_step + 1))
    assert math.fsum(one.energy_j for one in found.accounts) == pytest.approx(found.step_energy_j, rel=1e-12)
    placed = {(one.module, one.phase) for one in found.accounts}
    assert {("0", "forward"), ("2", "backward"), ("", "optimizer")} <= placed
    step = step_energy(whole)
    assert step is not None
    for by in (("operator",), ("kernel",), ("kind",), ("phase",)):
        assert math.fsum(one.energy_j for one in share_energy(whole, step, by)) == pytest.approx(step.energy_j)
    assert ("aten::linear",) in {one.key for one in share_energy(whole, step, ("operator",))}


@pytest.mark.parametrize("by", ["module", "phase", "scope", "operator", "kernel"])
def test_show_sets_bytes_times_and_joules_side_by_side(by: str, whole: Rank) -> None:
    shown = CliRunner().invoke(main, ["show", str(whole.directory.parent), "--by", by, "--sort", "energy", "-n", "3"])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert any(line.startswith("Energy ") and "±" in line for line in lines)
    assert any(" per sample" in line for line in lines)
    overview = CliRunner().invoke(main, ["show", str(whole.directory.parent)]).stdout
    assert "samples/s (batch 8: input of Sequential)" in overview
    assert "\nOverhead " in overview
    title = next(line for line in lines if line.startswith(f"by {by}"))
    assert "ms" in title
    assert " J " in title
    assert lines[-1].startswith("total") or "total" in shown.stdout


def test_the_documents_of_show_hold_the_same_joules(whole: Rank) -> None:
    shown = CliRunner().invoke(main, ["show", str(whole.directory.parent), "--json"])
    document = json.loads(shown.stdout)
    energy = document["energy"]
    assert math.fsum(one["energy_j"] for one in energy["breakdown"]) == pytest.approx(energy["step_energy_j"])
    assert document["rates"]["sample_energy_j"] == pytest.approx(energy["step_energy_j"] / 8)
    assert document["overhead"]["paused_ns"] > 0


def test_the_parts_of_a_step_sum_to_it(whole: Rank) -> None:
    parts = step_parts(whole)
    assert parts is not None
    assert sum(time_ns for _, time_ns in parts.items()) == pytest.approx(parts.step_ns)
    assert all(time_ns >= 0 for _, time_ns in parts.items())
    assert parts.forward_ns > 0


def test_a_recording_from_python_has_its_joules_as_values(tmp_path: Path) -> None:
    ended = metered_from_python(tmp_path, watts=250, wobble=5)
    assert ended.status == 0, ended.stderr
    step_j, sample_j, step_ns = json.loads(ended.stdout)
    (energy,) = present(load(tmp_path / "all.ledger").rank().manifest.energy)
    steps = energy.last_step - energy.first_step + 1
    assert step_j == pytest.approx(present(energy.energy_j) / steps)
    expected_j = 250 * (energy.end_ns - energy.start_ns) / 1e9
    assert abs(present(energy.energy_j) - expected_j) <= present(energy.uncertainty_j) < expected_j
    assert sample_j == pytest.approx(step_j / 8)
    assert step_ns > 0
