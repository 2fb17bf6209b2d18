"""The host time of a step: measured on the model itself, and then used by the sum instead of its parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from operator_keys import key_for
from present import present

from gpuledger.errors import InputError
from gpuledger.ops.database.host_overhead import AUTOGRAD_NODES, MODULE_CALLS, host_step_key, host_step_ns, is_operator
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.database.statistics import summarize
from gpuledger.ops.measure import host_step
from gpuledger.ops.measure.host_step import fill_host_steps, host_rounds_ns, put_host_step
from gpuledger.ops.measure.measured_device import find_device
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.workload import Use, Workload

ENVIRONMENT = Environment("card", "1", "2.13", "13", {"cache_bytes": 1000})
RELU = key_for(torch.ops.aten.relu.default, torch.ones(4))
SETTINGS: dict[str, Any] = {
    "model": "torchvision:resnet18", "inputs": ["8x3x32x32"], "optimizer": None, "autocast": None,
    MODULE_CALLS: 68, AUTOGRAD_NODES: 0,
}  # fmt: skip


def workload_of(**settings: object) -> Workload:
    return Workload("model", "inference", (Use(RELU, 100),), settings={**SETTINGS, **settings})


def relu_record(**launch: float) -> Record:
    blocks = ({"kind": "summary", **launch},)
    return Record(RELU.digest, ENVIRONMENT.digest, {"mode": "rotating"}, 1e3, 1e3, 1e3, blocks=blocks)


def step_record(time_ns: float, measured_ns: int = 1, **settings: object) -> Record:
    key = present(host_step_key({**SETTINGS, **settings}, "inference"))
    return Record(key.digest, ENVIRONMENT.digest, {"mode": "host"}, time_ns, time_ns, time_ns, measured_ns=measured_ns)


def test_the_sum_uses_the_newest_host_time_of_the_model_itself() -> None:
    records = [relu_record(host_ns=5_000.0), step_record(1e6, 2), step_record(3e6, 1)]
    total = sum_up(workload_of(), records, ENVIRONMENT)
    assert total.is_host_measured
    assert (total.host_ns, total.step_ns, total.busy_ns) == (1e6, 1e6, 1e5)
    assert sum_up(workload_of(), records[:1], ENVIRONMENT).host_ns == 100 * 5_000


@pytest.mark.parametrize(
    "other", [{"inputs": ["8x3x64x64"]}, {"autocast": "bfloat16"}, {"model": "torchvision:resnet34"}]
)
def test_the_host_time_of_another_model_size_or_dtype_is_not_used(other: dict[str, Any]) -> None:
    records = [relu_record(host_ns=5_000.0), step_record(1e6, **other)]
    total = sum_up(workload_of(), records, ENVIRONMENT)
    assert not total.is_host_measured
    assert total.host_ns == 100 * 5_000


def test_a_part_of_a_model_and_a_program_have_no_measured_host_time() -> None:
    records = [relu_record(host_ns=5_000.0), step_record(1e6)]
    assert not sum_up(workload_of(), records, ENVIRONMENT, only=[RELU.digest]).is_host_measured
    assert host_step_key({"program": "train.py"}, "training") is None
    assert host_step_ns({"program": "train.py"}, "training", records) is None


def test_each_round_begins_on_an_idle_gpu() -> None:
    seen: list[str] = []
    rounds_ns = host_rounds_ns(lambda: seen.append("step"), lambda: seen.append("wait"))
    assert len(rounds_ns) == host_step.MOST_ROUNDS
    assert seen == ["step"] * host_step.WARM_UP + ["wait", "step"] * len(rounds_ns) + ["wait"]
    assert all(0 < one < 1e9 for one in rounds_ns)


def test_it_is_measured_once_and_not_for_what_cannot_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def step_of(workload: Workload, _place: object, *, trusted: bool) -> Callable[[], object]:
        if workload.settings["model"] == "mine:model" and not trusted:
            raise InputError("a file must not name Python code to run")
        return lambda: ran.append(workload.settings["model"])

    monkeypatch.setattr(host_step, "step_of", step_of)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    cpu = find_device("cpu")
    gpu = replace(cpu, device="cuda:0")
    workloads = [workload_of(), workload_of(model="mine:model"), workload_of(model=None)]
    clock = itertools.count(1)
    with open_database(tmp_path / "operators.db") as database:
        assert fill_host_steps(workloads, database, cpu) == 0
        assert fill_host_steps(workloads, database, gpu, clock_ns=lambda: next(clock)) == 1
        assert fill_host_steps(workloads, database, gpu) == 0
        assert fill_host_steps(workloads, database, gpu, trusted=True) == 1
        assert set(ran) == {"torchvision:resnet18", "mine:model"}
        put_host_step(database, gpu, workloads[0], summarize([7e6, 7e6]))
        put_host_step(database, gpu, workloads[2], summarize([8e6]))
        records = database.records(gpu.environment)
        assert host_step_ns(SETTINGS, "inference", records) == 7e6
        assert len(records) == 3
        assert not any(is_operator(present(host_step_key(one.settings, "inference"))) for one in workloads[:2])
