"""What the passes of a real GPU come to: an H200's kernels, edges of its energy counter and samples, as recorded.

``halves`` is bench/lib/halves.py, one half products and one half copies, of which each alone is known
(tests/data/h200/halves_alone.json); ``neumf-training`` is bench/lib/train_one.py neumf.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from folders import DATA, RECORDINGS
from present import present

from gpuledger.analyze.compare.metrics import headline
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.operator_work.power_model import PowerModel, model_to_json
from gpuledger.analyze.step.energy import EnergyBreakdown, break_down_energy
from gpuledger.analyze.step.line_accounts import energies_by_line
from gpuledger.analyze.step.overhead import find_overhead
from gpuledger.analyze.step.rates import find_rates
from gpuledger.analyze.step.side_by_side import lines_by
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.times import TimeBreakdown, break_down_time
from gpuledger.analyze.view.report_tree import IDLE_PATH
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.model.manifest import read_json
from gpuledger.model.run import KeptRank, Rank
from gpuledger.model.run_directory import write_json
from gpuledger.model.schema.tables import TABLES
from gpuledger.ops.predict.power import find_power_model
from gpuledger.ops.predict.watts import shipped
from gpuledger.report.html.payload import build_payload
from gpuledger.services.runs import load

RECORDED = RECORDINGS / "passes"
NAMES = ("halves", "neumf-training")
MEASURED = DATA / "h200" / "halves_alone.json"


def rank_of(name: str) -> Rank:
    return load(RECORDED / f"{name}.ledger").rank(0)


def _between(rank: Rank, start_ns: int, end_ns: int) -> Any:
    at = rank.table("samples")["t_ns"]
    return pc.and_(pc.greater_equal(at, start_ns), pc.less(at, end_ns))


def times_of(name: str) -> TimeBreakdown:
    found = break_down_time(rank_of(name))
    assert found is not None
    return found


def joules_of(name: str) -> EnergyBreakdown:
    found = break_down_energy(rank_of(name))
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_kernels_close_and_each_is_placed(name: str) -> None:
    times = times_of(name)
    assert not times.on_host
    assert math.fsum(one.time_ns for one in times.accounts) == pytest.approx(times.work_ns)
    assert math.fsum(times.by_kind_ns.values()) == pytest.approx(times.work_ns)
    assert times.unplaced_ns == 0
    assert times.idle_ns is not None
    assert times.unprofiled.median_ns is not None
    assert times.busy_ns + times.idle_ns == pytest.approx(times.unprofiled.median_ns)


def test_phases_of_a_training_are_told_apart() -> None:
    times = times_of("neumf-training")
    phases = {one.phase for one in times.accounts}
    assert {"forward", "backward", "optimizer", "between"} <= phases
    assert {("user_factors", "forward"), ("user_factors", "backward")} <= {
        (one.module, one.phase) for one in times.accounts
    }
    assert 0.01 < times.between_ns / times.work_ns < 0.02  # its batch, copied to the GPU


@pytest.mark.parametrize("name", NAMES)
def test_a_steps_joules_agree_with_the_power_samples_and_its_lines_come_to_them(name: str) -> None:
    rank, found = rank_of(name), joules_of(name)
    (energy,) = present(rank.manifest.energy)
    sampled = pc.filter(rank.table("samples"), _between(rank, energy.start_ns, energy.end_ns))
    mean_w = present(pc.mean(sampled["power_instant_w"]).as_py())
    duration_s = (energy.end_ns - energy.start_ns) / 1e9
    steps = energy.last_step - energy.first_step + 1
    # Another sensor of the GPU, and not one that is read often enough for two halves that alternate.
    assert found.step_energy_j == pytest.approx(mean_w * duration_s / steps, rel=0.1)
    assert math.fsum(one.energy_j for one in found.accounts) == pytest.approx(found.step_energy_j)
    assert 0 < found.step_uncertainty_j < 0.005 * found.step_energy_j
    assert found.base_w is not None
    assert 110 < found.base_w < 140


@pytest.mark.parametrize("half", ["products", "copies"])
def test_each_half_has_the_joules_that_it_had_alone(half: str) -> None:
    (mine,) = [one for one in joules_of("halves").accounts if one.module == half]
    alone = json.loads(MEASURED.read_text())["alone_j"][half]
    assert mine.energy_j == pytest.approx(alone, rel=0.07)
    assert abs(mine.energy_j - alone) < mine.uncertainty_j


def test_what_the_database_holds_of_the_card_shares_the_joules_and_says_for_how_much() -> None:
    rank = rank_of("neumf-training")
    table = shipped(present(rank.manifest.devices[0].name))
    assert table is not None
    known = with_facts(rank, measured_watts=table.to_json())
    before, after = joules_of("neumf-training"), break_down_energy(known)
    assert after is not None
    share = re.search(r"was measured for (\d+) % of the time", after.method)
    assert share is not None
    assert 40 <= int(share[1]) <= 70
    assert "measured" not in before.method
    assert math.fsum(one.energy_j for one in after.accounts) == pytest.approx(before.step_energy_j)
    assert sum(one.uncertainty_j for one in after.accounts) < 0.8 * sum(one.uncertainty_j for one in before.accounts)


def test_a_run_keeps_what_is_known_of_its_card_when_its_joules_are_posted(tmp_path: Path) -> None:
    place = tmp_path / "again.ledger"
    shutil.copytree(RECORDED / "neumf-training.ledger", place)
    manifest = read_json(place / "rank-0" / "manifest.json")
    write_json(place / "rank-0" / "manifest.json", {key: value for key, value in manifest.items() if key != "energy"})
    again = load(place).rank(0)
    assert again.manifest.energy is not None
    assert again.manifest.energy[0].energy_j == manifest["energy"][0]["energy_j"]
    assert again.manifest.measured_watts is not None
    assert again.manifest.measured_watts["card"] == "NVIDIA H200"
    assert rank_of("neumf-training").manifest.measured_watts is None


def test_products_of_bfloat16_do_not_take_the_watts_of_float32() -> None:
    """The database has only those of the latter: the halves stay with what is assumed, and as near as they are."""
    table = shipped("NVIDIA H200")
    assert table is not None
    found, before = (
        break_down_energy(with_facts(rank_of("halves"), measured_watts=table.to_json())),
        joules_of("halves"),
    )
    assert found is not None
    assert found.method == before.method
    assert [one.energy_j for one in found.accounts] == pytest.approx([one.energy_j for one in before.accounts])


@pytest.mark.parametrize(("factor", "is_usual"), [(1.2, True), (30, False)])
def test_energy_of_longer_steps_is_said_to_be_that(factor: float, is_usual: bool) -> None:
    """A checkpoint that is saved between two steps of the measurement is in the energy of both."""
    rank = rank_of("neumf-training")
    (measured,) = present(rank.manifest.energy)
    usual_ns = present(step_times(rank).median_ns)
    end_ns = measured.start_ns + round(factor * usual_ns * (measured.last_step - measured.first_step + 1))
    found = with_facts(rank, energy=(replace(measured, end_ns=end_ns),))
    energy = present(break_down_energy(found))
    said = [note for note in energy.notes if "what the program did between them" in note]
    assert bool(said) is not is_usual
    assert energy.unusual_step_s == (None if is_usual else pytest.approx(factor * usual_ns / 1e9, rel=1e-6))
    rates = present(find_rates(found))
    assert (rates.sample_energy_j is not None) is is_usual


def with_facts(rank: Rank, **facts: Any) -> Rank:
    return Rank(rank.number, rank.directory, replace(rank.manifest, **facts))


def with_work(rank: Rank, model: PowerModel) -> Rank:
    """Return the halves as a trace with shapes tells them: products of 2048 by 2048, copies of 1 GiB."""
    table = rank.table("spans")
    is_product = pc.equal(table["kind"], "kernel")
    columns = {
        "flops": pc.if_else(is_product, 2.0 * 2048**3, 0.0),
        "moved_bytes": pc.if_else(is_product, 3 * 2.0 * 2048**2, 2.0 * (1 << 30)),
        "numbers": pc.if_else(is_product, "bfloat16", "float32").dictionary_encode(),
    }
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    tables = {"spans": table, "names": rank.table("names"), "modules": rank.table("modules")}
    return KeptRank(
        rank.number, rank.directory, replace(rank.manifest, power_model=model_to_json(model)), tables=tables
    )


@pytest.mark.parametrize("half", ["products", "copies"])
def test_each_half_has_the_joules_that_it_had_alone_by_its_flops_and_bytes_too(half: str) -> None:
    model = find_power_model("NVIDIA H200")
    assert model is not None
    found = break_down_energy(with_work(rank_of("halves"), model))
    assert found is not None
    (mine,) = [one for one in found.accounts if one.module == half]
    alone = json.loads(MEASURED.read_text())["alone_j"][half]
    assert found.method.endswith(f"That power follows from FLOPs and bytes ({model.source})")
    assert mine.energy_j == pytest.approx(alone, rel=0.07)
    assert abs(mine.energy_j - alone) < mine.uncertainty_j
    before = sum(one.uncertainty_j for one in joules_of("halves").accounts)
    assert sum(one.uncertainty_j for one in found.accounts) < before
    assert math.fsum(one.energy_j for one in found.accounts) == pytest.approx(found.step_energy_j)


def test_what_the_model_does_not_know_stays_as_it_was() -> None:
    model = find_power_model("NVIDIA H200")
    assert model is not None
    found, before = (
        break_down_energy(with_facts(rank_of("halves"), power_model=model_to_json(model))),
        joules_of("halves"),
    )
    assert found is not None
    assert found.method == before.method
    assert [one.energy_j for one in found.accounts] == pytest.approx([one.energy_j for one in before.accounts])


def test_what_recording_cost_is_told() -> None:
    cost = find_overhead(rank_of("halves"))
    assert cost.profiled_step_frac is not None
    assert 1.0 < cost.profiled_step_frac < 1.15
    assert cost.energy_j is not None


@pytest.mark.parametrize("name", NAMES)
def test_they_are_shown(name: str, tmp_path: Path) -> None:
    run = str(RECORDED / f"{name}.ledger")
    shown = CliRunner().invoke(main, ["show", run, "--by", "module", "--json"])
    assert shown.exit_code == 0, shown.output
    page = CliRunner().invoke(main, ["report", run, "-o", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    trace = CliRunner().invoke(main, ["trace", run, "-o", str(tmp_path / "trace.json")])
    assert trace.exit_code == 0, trace.output
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} >= {"kernel", "module", "phase"}
    assert {"cuda:0 bytes", "cuda:0 power, W"} <= {event["name"] for event in events if event["ph"] == "C"}


def summed(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of each name, without those that come to nothing."""
    found: dict[str, float] = defaultdict(float)
    for name, amount in amounts:
        found[name] += amount
    return {name: amount for name, amount in found.items() if amount}


@pytest.mark.parametrize("name", NAMES)
def test_a_module_has_the_same_milliseconds_and_joules_in_every_view(name: str, tmp_path: Path) -> None:
    run = load(RECORDED / f"{name}.ledger")
    shown = CliRunner().invoke(main, ["show", str(run.path), "--by", "module", "--json"])
    document = json.loads(shown.stdout)
    payload = build_payload(build_view(run))["views"][0]
    paths = payload["tree"]["path"]

    def of_report(currency: str) -> dict[str, float]:
        columns = payload[currency]["accounts"]
        return summed((paths[node], amount) for node, amount in zip(columns["node"], columns["amount"], strict=True))

    times = summed((line["label"], line["time_ns"]) for line in document["lines"])
    assert times == pytest.approx(summed((one.module or OUTSIDE_PATH, one.time_ns) for one in times_of(name).accounts))
    assert times == pytest.approx({path: ns for path, ns in of_report("time").items() if path != IDLE_PATH}, abs=5)
    CliRunner().invoke(main, ["trace", str(run.path), "-o", str(tmp_path / "trace.json")])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    traced = [event for event in events if event.get("cat") in ("kernel", "copy")]
    steps = document["time"]["steps"]
    traced_ns = summed((event["args"]["module"] or OUTSIDE_PATH, event["dur"] * 1e3 / steps) for event in traced)
    assert times == pytest.approx(traced_ns, abs=5)
    joules = summed((line["label"], line["energy_j"]) for line in document["lines"])
    assert joules == pytest.approx(of_report("energy"), rel=1e-4)
    figures = headline(run.rank(0))
    (cost,) = (text for name, text in payload["facts"] if name == "Overhead of recording")
    assert all(words in cost for words in ("of host memory", "of pauses", "unprofiled ones", "of pauses (at most "))
    assert figures["step_energy_j"] == pytest.approx(math.fsum(joules.values()))
    assert figures["gpu_busy_frac"] == pytest.approx(document["time"]["busy_ns"] / document["step_time_ns"])
    assert figures["sample_energy_j"] == document["rates"]["sample_energy_j"]


def test_energy_that_nothing_divides_is_on_no_module_and_no_line() -> None:
    whole = rank_of("neumf-training")
    names = [name for name in TABLES if name != "spans"]
    manifest = replace(whole.manifest, time_steps=None)
    rank = KeptRank(whole.number, whole.directory, manifest, tables={name: whole.table(name) for name in names})
    found = break_down_energy(rank)
    assert found is not None
    assert found.step_energy_j == joules_of("neumf-training").step_energy_j
    assert (found.accounts, found.scopes) == ((), ())
    assert "Energy is known for whole steps only" in found.notes[0]
    assert energies_by_line(rank, None, "line") == ()
    for word in ("module", "line", "phase"):
        lines = lines_by(rank, break_down(rank, resolve_instant(rank, "peak")), word)
        assert lines
        assert {line.energy_j for line in lines} == {None}
