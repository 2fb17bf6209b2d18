"""Kineto's events become columns of the journal, and nothing is read of them that is not stored."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpuledger.collect.adapter import kineto  # noqa: E402
from gpuledger.collect.adapter.kineto_events import ALL_TIMES  # noqa: E402
from gpuledger.collect.passes.kineto_columns import CAPTURED_LAUNCH, events_between, read_activities, read_capture  # noqa: E402
from gpuledger.model.journal.columns import COLUMNS  # noqa: E402
from gpuledger.model.journal.journal import ActivityKind, Part  # noqa: E402

pytestmark = pytest.mark.torch

CPU, CUDA = torch._C._autograd.DeviceType.CPU, torch._C._autograd.DeviceType.CUDA
FLOAT = "float"


class Event:
    """An event as torch 2.11 gives it. Counts which of its methods are called."""

    def __init__(self, name: str, own: int, linked: int = 0, *, on_device: bool = False) -> None:
        self.asked: Counter[str] = Counter()
        self.values: dict[str, Any] = {
            "name": name,
            "correlation_id": own,
            "linked_correlation_id": linked,
            "device_type": CUDA if on_device else CPU,
            "is_user_annotation": False,
            "start_ns": 10 * own,
            "duration_ns": own,
            "device_index": 3,
            "device_resource_id": 7,
            "start_thread_id": 1,
            "sequence_nr": -1,
            "fwd_thread_id": 0,
            "dtypes": [FLOAT],
            "shapes": [[2]],
            "concrete_inputs": [float("inf")],
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.values:
            raise AttributeError(name)
        return lambda: self._value(name)

    def _value(self, name: str) -> Any:
        self.asked[name] += 1
        return self.values[name]


def a_step() -> list[Event]:
    return [
        Event("aten::add", 1),
        Event("aten::view", 2),
        Event("aten::convolution", 3),
        Event("cudaLaunchKernel", 9),
        Event("cuOfTheDriver", 10),
        Event("add_kernel", 9, 1, on_device=True),
        Event("Memcpy DtoD", 11, 1, on_device=True),
    ]


def test_operators_kernels_and_copies_are_stored() -> None:
    read = read_activities(a_step(), ALL_TIMES)
    kinds = [ActivityKind(kind).name for kind in read.columns["kind"]]
    assert kinds == ["HOST", "HOST", "HOST", "KERNEL", "COPY"]
    assert read.names == ["aten::add", "aten::view", "aten::convolution", "add_kernel", "Memcpy DtoD"]
    assert read.columns["name_id"] == [0, 1, 2, 3, 4]
    assert read.columns["device_idx"] == [-1, -1, -1, 3, 3]
    assert read.columns["lane"] == [1, 1, 1, 7, 7]
    assert read.columns["launch_id"] == [1, 2, 3, 1, 1]
    assert read.columns["start_ns"] == [10, 20, 30, 90, 110]
    assert read.has_kernels


def test_inputs_are_read_of_what_launched_something_alone() -> None:
    events = a_step()
    read = read_activities(events, ALL_TIMES)
    assert read.columns["inputs_id"] == [0, -1, 0, -1, -1]
    assert read.inputs == [[[[2]], None, [FLOAT], [None]]]
    assert [event.asked["shapes"] for event in events] == [1, 0, 1, 0, 0, 0, 0]


def test_without_kernels_no_inputs_are_read() -> None:
    read = read_activities(a_step()[:3], ALL_TIMES)
    assert not read.has_kernels
    assert read.inputs == []
    assert read.columns["inputs_id"] == [-1, -1, -1]


def test_the_device_is_read_only_where_the_name_does_not_tell_it() -> None:
    events = a_step()
    read_activities(events, ALL_TIMES)
    assert [event.asked["device_type"] for event in events] == [0, 0, 0, 0, 1, 1, 1]


def test_events_without_a_beginning_or_an_end_are_left_out() -> None:
    """As those that another thread was in when the profile began or ended."""
    events = a_step()
    events[0].values["start_ns"], events[1].values["duration_ns"] = 1 << 63, (1 << 64) - 186_421
    read = read_activities(events, ALL_TIMES)
    assert read.names == ["aten::convolution", "add_kernel", "Memcpy DtoD"]
    assert read.columns["start_ns"] == [30, 90, 110]
    columns, names = read_capture(events)
    assert names[0] == "aten::convolution"
    assert max(columns["start_ns"] + columns["duration_ns"]) < 1 << 63


def test_no_event_gives_no_row() -> None:
    read = read_activities([], ALL_TIMES)
    assert read.names == []
    assert not any(read.columns.values())


def test_the_columns_of_a_profile_are_those_of_its_events() -> None:
    profiler = kineto.Profiler()
    profiler.start()
    (torch.ones(4, requires_grad=True) * 2).sum().backward()
    events = profiler.stop(wait=False)
    read = read_activities(events, ALL_TIMES)
    assert set(read.columns) == set(COLUMNS["activities"])
    part = Part()
    part.add("activities", **read.columns)
    arrays = part.arrays()
    rows = zip(
        (read.names[number] for number in arrays["activities.name_id"].tolist()),
        *(
            arrays[f"activities.{name}"].tolist()
            for name in ("start_ns", "duration_ns", "launch_id", "sequence", "lane")
        ),
        strict=True,
    )
    assert list(rows) == [
        (one.name(), one.start_ns(), one.duration_ns(), one.correlation_id(), one.sequence_nr(), one.start_thread_id())
        for one in events
    ]


def a_capture() -> list[Event]:
    return [
        Event("cudaLaunchKernel", 1, 2),  # before the capture: torch seeds its random numbers
        Event("aten::add", 2),
        Event("cudaStreamBeginCapture", 3),
        Event("cudaMemsetAsync", 6, 4),
        Event("aten::addmm", 4),
        Event("cuLaunchKernelEx", 5, 4),
        Event("cudaStreamIsCapturing", 7, 4),
        Event("INVALID", 4),  # a call with the same number as an operator
        Event("cudaStreamEndCapture", 8),
        Event("cudaLaunchKernel", 9, 2),
    ]


def test_a_capture_has_operators_and_launches_in_order() -> None:
    columns, names = read_capture(a_capture())
    Part().add("captures", capture=[0] * len(columns["kind"]), **columns)
    assert set(columns) | {"capture"} == set(COLUMNS["captures"])
    kinds = [ActivityKind.HOST, ActivityKind.HOST, ActivityKind.KERNEL, ActivityKind.COPY]
    assert columns["kind"] == [int(kind) for kind in kinds]
    assert [names[number] for number in columns["name_id"]] == ["aten::add", "aten::addmm", *[CAPTURED_LAUNCH] * 2]
    assert columns["launch_id"] == [2, 4, 4, 4]
    assert columns["start_ns"] == [20, 40, 50, 60]


def test_what_is_captured_in_a_profiled_step_is_found_by_its_time() -> None:
    around = Event("gpuledger.module.3", 1)
    around.values |= {"start_ns": 0, "duration_ns": 500}
    found = events_between([around, *a_capture()], 30, 70)
    assert found[0].name() == "gpuledger.module.3"
    assert [event.start_ns() for event in found][1:] == [30, 60, 40, 50, 40]
