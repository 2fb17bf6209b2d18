"""The shipped database of an H200: it adds up to the whole models that were measured beside it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import torch
from folders import DATA
from present import present
from torch.utils._pytree import tree_leaves

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.ops.database.host_overhead import is_operator
from gpuledger.ops.database.shipped import shipped_contents
from gpuledger.ops.predict.choose import EnvironmentRecords, model_of
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.rebuild import rebuild
from gpuledger.ops.workloads.workload import read_workload

pytestmark = pytest.mark.torch
RESULTS = DATA / "h200"
OTHERWISE_AS_GRAPHS = ("bert", "gpt2", "llama")
"""That library's models take longer as graphs than launched eagerly: they are held to nothing here."""


@pytest.fixture(scope="module")
def shelf() -> EnvironmentRecords:
    contents = shipped_contents()
    (environment,) = contents.environments.values()
    return EnvironmentRecords(environment, tuple(contents.records), contents.keys, ())


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pairs")
    with tarfile.open(RESULTS / "operator_pairs.tgz") as packed:
        packed.extractall(place, filter="data")
    return place / "operator_pairs"


def test_the_shipped_model_is_fitted_to_the_shipped_records(
    shelf: EnvironmentRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fit, and no scikit-learn, is needed for the first prediction."""
    monkeypatch.setattr("gpuledger.ops.predict.choose.fit", None)
    model = model_of(shelf)
    assert model.database_digest == shelf.digest
    assert model.examples == len(shelf.examples)


@pytest.mark.parametrize(("mode", "time_frac", "energy_frac"), [("inference", 0.03, 0.06), ("training", 0.05, 0.05)])
def test_operators_and_their_energy_add_up_to_their_models(
    mode: str, time_frac: float, energy_frac: float, shelf: EnvironmentRecords, pairs: Path
) -> None:
    time_away, energy_away = [], []
    for place in sorted((pairs / mode).glob("*.whole.json")):
        if place.name.startswith(OTHERWISE_AS_GRAPHS):
            continue
        whole = json.loads(place.read_text())["whole"]
        workload = read_workload(place.with_name(place.name.replace(".whole.", ".workload.")))
        total = sum_up(workload, shelf.records, shelf.environment)
        assert total.calls_frac == 1.0
        assert not total.notes
        time_away.append(abs(total.busy_ns / whole["graph_time_ns"]["median"] - 1))
        if whole["graph_energy_j"] is not None:
            energy_away.append(abs(present(total.busy_energy_j) / whole["graph_energy_j"]["median"] - 1))
    assert len(time_away) == {"inference": 22, "training": 19}[mode]
    assert sum(time_away) / len(time_away) < time_frac
    assert max(time_away) < 0.09
    assert len(energy_away) >= 18
    assert sum(energy_away) / len(energy_away) < energy_frac
    assert sorted(energy_away)[len(energy_away) // 2] < 0.04


@pytest.mark.parametrize("name", OTHERWISE_AS_GRAPHS)
def test_operators_of_float32_transformers_add_up_to_the_eager_model(
    name: str, shelf: EnvironmentRecords, pairs: Path
) -> None:
    """In these the GPU is slower than the CPU, so the eager model takes the time of its operators."""
    (place,) = [found for found in (pairs / "inference").glob(f"{name}-*.whole.json") if "bfloat16" not in found.name]
    whole = json.loads(place.read_text())["whole"]
    workload = read_workload(place.with_name(place.name.replace(".whole.", ".workload.")))
    total = sum_up(workload, shelf.records, shelf.environment)
    assert present(total.step_ns) == pytest.approx(whole["time_ns"]["median"], rel=0.015)
    assert present(total.energy_j) == pytest.approx(whole["energy_j"]["median"], rel=0.05)


def test_the_kernels_of_all_operators_are_named(shelf: EnvironmentRecords) -> None:
    named = {record.key_digest for record in shelf.records if record.kernels}
    measured = {record.key_digest for record in shelf.records}
    bare = {shelf.keys[digest].name for digest in measured - named}
    assert bare - {"autograd_node", "module_call", "node_made"} == {"as_strided_", "zeros"}  # a view; of no elements


def test_every_record_is_whole(shelf: EnvironmentRecords) -> None:
    assert shelf.environment.card == "NVIDIA H200"
    for record in shelf.records:
        assert record.status == "ok"
        assert present(record.time_low_ns) <= present(record.time_median_ns) <= present(record.time_high_ns)
        if record.energy_median_j is not None:
            assert present(record.energy_low_j) <= record.energy_median_j <= present(record.energy_high_j)
            assert record.base_w is None or 110 < record.base_w < 200


TOLD_BY_KEY = ("convolution", "matmul", "elementwise", "copy", "pooling", "reduction", "softmax")
"""Families whose results have as many bytes as is computed from the key; a loss over rows is none."""


def test_every_operator_of_the_database_is_made_again_and_gives_what_its_key_says(shelf: EnvironmentRecords) -> None:
    keys = [key for key in shelf.keys.values() if is_operator(key)]
    for key in keys:
        call = rebuild(key, "meta")
        given = [one for one in tree_leaves([call.args, call.kwargs]) if isinstance(one, torch.Tensor)]
        described = [(tensor["shape"], tensor["stride"]) for tensor in key.tensors()]
        assert [(list(one.shape), list(one.stride())) for one in given] == described, key.text
        with torch.no_grad():
            results = [one for one in tree_leaves(call()) if isinstance(one, torch.Tensor)]
        work = work_of(key)
        if work.family in TOLD_BY_KEY and "loss" not in key.name:
            assert sum(one.numel() * one.element_size() for one in results) == work.written_bytes, key.text
        elif "norm" in key.name:
            assert list(results[0].shape) == described[0][0], key.text
    assert len(keys) == 9361
