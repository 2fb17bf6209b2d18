"""Kernels' names from a profiler: what begins within the range around a call, and nothing beside it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from operator_keys import key_for

from gpuledger.model.journal.journal import ActivityKind
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.operator_database import OperatorDatabase, open_database
from gpuledger.ops.database.records import Record
from gpuledger.ops.measure.measured_device import find_device
from gpuledger.ops.measure.names import DEVICE_KINDS, RANGE, kernels_of_keys, name_kernels, names_in_ranges

aten = torch.ops.aten
DeviceType = torch.autograd.DeviceType  # type: ignore[attr-defined]  # not exported


@dataclass(frozen=True)
class Event:
    """What Kineto tells of an activity."""

    kind: str
    label: str
    start: int
    duration: int = 10

    def name(self) -> str:
        return self.label

    def activity_type(self) -> str:
        return self.kind

    def device_type(self) -> object:
        return DeviceType.CPU if self.kind == "cpu_op" else DeviceType.CUDA

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.duration


def test_a_kernel_belongs_to_the_range_that_it_begins_in() -> None:
    events = [
        Event("cpu_op", f"{RANGE}0", 100, 50),
        Event("cpu_op", f"{RANGE}1", 200, 50),
        Event("gpu_user_annotation", f"{RANGE}1", 90, 500),  # the range's shadow on the device
        Event("kernel", "before", 50),
        Event("kernel", "second", 140),
        Event("kernel", "first", 110),
        Event("kernel", "first", 120),
        Event("gpu_memset", "Memset", 130),
        Event("cpu_op", "aten::relu", 115),
        Event("kernel", "between", 170),
    ]
    assert names_in_ranges(events, DEVICE_KINDS) == {0: ("first", "Memset", "second")}


def test_one_session_names_what_each_operator_runs_and_goes_on_after_a_failure() -> None:
    broken = OperatorKey("aten.mm.default", ({"shape": [2, 3], "dtype": "float32", "stride": [3, 1]},) * 2)
    keys = [
        key_for(aten.relu.default, torch.ones(8)),
        broken,
        key_for(aten.mm.default, torch.ones(4, 4), torch.ones(4, 4)),
    ]
    named = kernels_of_keys(keys, find_device("cpu"), lambda: None, frozenset({ActivityKind.HOST}))
    assert set(named) == {keys[0].digest, keys[2].digest}
    assert named[keys[0].digest][0] == "aten::relu"
    assert named[keys[2].digest][0] == "aten::mm"
    assert not torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # not exported


@pytest.fixture
def database(tmp_path: Path) -> Iterator[OperatorDatabase]:
    with open_database(tmp_path / "operators.db") as opened:
        yield opened


def test_names_are_written_to_the_records_that_lack_them(database: OperatorDatabase) -> None:
    place = find_device("cpu")
    other = replace(place.environment, torch="9.9")
    keys = [key_for(aten.relu.default, torch.ones(size)) for size in (1, 2)]
    database.put_keys(keys)
    for environment in (place.environment, other):
        database.put_environment(environment)
        database.put_records(
            Record(key.digest, environment.digest, {"mode": "hot"}, 1.0, 1.0, 1.0, kernels=kernels, measured_ns=7)
            for key, kernels in zip(keys, ((), ("known",)), strict=True)
        )
    names = {key.digest: ("relu_kernel",) for key in keys}
    for _ in range(2):
        database.put_kernels(names, place.environment)
        found = {record.key_digest: record.kernels for record in database.records(place.environment)}
        assert [found[key.digest] for key in keys] == [("relu_kernel",), ("known",)]
    assert {record.kernels for record in database.records(other)} == {(), ("known",)}


def test_a_processor_has_no_kernels_to_name(database: OperatorDatabase) -> None:
    assert name_kernels(database, find_device("cpu")) == 0
