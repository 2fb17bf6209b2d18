"""A prediction has the GPU's time, the CPU's, and the eager step as the longer of both."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from folders import DATA

from gpuledger.cli.main import main
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.totals.predicted_host import fitted_times, predicted_host
from gpuledger.ops.workloads.workload import Use, Workload, read_workload

RELU = OperatorKey("aten.relu.default", ({"shape": [64, 64], "dtype": "float32", "stride": [64, 1]},))
LONG = OperatorKey("aten.relu.default", ({"shape": [1 << 28], "dtype": "float32", "stride": [1]},))
COUNTS: dict[str, Any] = {"module_calls": 9, "autograd_nodes": 0, "no_kernel": {}, "host_calls": 0}


def workload(key: OperatorKey, **settings: Any) -> Workload:
    return Workload("w", "inference", (Use(key, 1),), (), settings)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def predict(one: Workload, *words: str) -> Result:
    one.write(Path("w.json"))
    result = CliRunner().invoke(main, ["ops", "predict", "w.json", *words])
    assert result.exit_code == 0, result.output
    return result


def document(one: Workload, *words: str) -> dict[str, Any]:
    (found,) = json.loads(predict(one, "--json", *words).stdout)
    return dict(found)


def test_many_short_calls_wait_for_the_cpu() -> None:
    asked = workload(RELU, **COUNTS)
    found, cpu = document(asked), predicted_host(asked)
    assert cpu is not None
    assert found["cpu_time_source"] == "predicted"
    assert found["time_ns"] < found["cpu_time_ns"] == found["eager_step_ns"] == cpu.time_ns
    assert (found["eager_step_low_ns"], found["eager_step_high_ns"]) == (cpu.low_ns, cpu.high_ns)
    machine = fitted_times().machine
    assert any(machine in note for note in found["notes"])
    assert any("the CPU limits the eager step" in note for note in found["notes"])


def test_a_long_call_waits_for_the_gpu() -> None:
    found = document(workload(LONG, **COUNTS))
    assert found["cpu_time_ns"] < found["time_ns"] == found["eager_step_ns"]
    assert (found["eager_step_low_ns"], found["eager_step_high_ns"]) == (found["time_low_ns"], found["time_high_ns"])
    assert not any("the CPU limits" in note for note in found["notes"])


def test_the_wait_takes_idle_power_on_the_measured_gpu() -> None:
    short, with_wait = workload(RELU, **COUNTS), workload(RELU, **{**COUNTS, "module_calls": 900})
    less, more = document(short), document(with_wait)
    watts = (more["energy_j"] - less["energy_j"]) / (more["eager_step_ns"] - less["eager_step_ns"]) * 1e9
    assert 80 < watts < 200
    assert more["energy_low_j"] <= more["energy_j"] <= more["energy_high_j"]
    elsewhere = [document(one, "--gpu", "a100-80gb")["energy_j"] for one in (short, with_wait)]
    assert elsewhere[0] == elsewhere[1]  # the idle power of a GPU that was not measured is unknown


def test_without_a_prediction_the_launches_count_and_are_shown_as_too_short(tmp_path: Path) -> None:
    name = "operator_pairs/training/gpt2-training-8x512_int64-bfloat16.workload.json"
    with tarfile.open(DATA / "h200" / "operator_pairs.tgz") as packed:
        packed.extract(name, tmp_path, filter="data")
    measured = read_workload(tmp_path / name)
    assert document(measured)["cpu_time_source"] == "launches"
    shown = predict(measured)
    cells = shown.stdout.splitlines()[2].split("  ")
    assert [cell.strip()[:1] for cell in cells if ">" in cell] == [">", ">"]  # CPU time and eager step
    assert "CPU time is that of the launches only" in shown.stderr
    assert "can take longer than the GPU time" not in shown.stderr


def test_without_numbers_of_calls_and_launches_only_the_gpu_time_is_predicted() -> None:
    found = document(workload(RELU), "--gpu", "a100-80gb")
    assert (found["cpu_time_ns"], found["cpu_time_source"]) == (None, None)
    assert found["eager_step_ns"] is None


def test_of_a_training_unlike_the_measured_ones_only_the_gpu_time_is_predicted() -> None:
    trained = Workload("w", "training", (Use(LONG, 70),), (), {**COUNTS, "autograd_nodes": 30})
    found = document(trained, "--gpu", "a100-80gb")
    assert (found["cpu_time_ns"], found["cpu_time_source"]) == (None, None)
    assert (found["eager_step_ns"], found["eager_step_high_ns"]) == (None, None)
    (note,) = (note for note in found["notes"] if "CPU time of this training is not predicted" in note)
    assert "launching its 70 operators" in note


def test_the_table_labels_each_time() -> None:
    result = predict(workload(RELU, **COUNTS))
    titles = " ".join(result.stdout.splitlines()[1].split())
    assert titles == "GPU time 90 % interval CPU time eager step energy 90 % interval time measured"
    narrow = CliRunner().invoke(main, ["ops", "predict", "w.json", "--gpu", "a100-80gb"], env={"COLUMNS": "60"})
    assert max(map(len, narrow.stdout.splitlines())) <= 60
    assert all(title in narrow.stdout for title in ("GPU time", "eager step", "energy"))
    assert "CPU time is predicted for an" in result.stderr
    without = predict(workload(RELU), "--gpu", "a100-80gb")
    assert "CPU" not in without.stdout + without.stderr


@pytest.mark.parametrize("name", ["module_calls", "autograd_nodes", "host_calls"])
def test_a_file_with_words_for_numbers_of_calls_is_refused(name: str) -> None:
    workload(RELU, **{**COUNTS, name: "many"}).write(Path("w.json"))
    result = CliRunner().invoke(main, ["ops", "predict", "w.json"])
    assert result.exit_code == 3
    assert "damaged workload" in result.stderr
