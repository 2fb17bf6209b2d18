"""Read Kineto's events: their fields, kinds, inputs and graph launches.

Every method of an event is called through :func:`operator.methodcaller`, and never as ``event.name()``. The methods are
made by pybind11. From Python 3.12 on, a direct call of one makes cProfile miss the returns of the functions in progress
(it counts the end of a call without its start). The program can run under cProfile.
"""

from __future__ import annotations

import math
from operator import itemgetter, methodcaller
from typing import Any

from torch import _C

from gpuledger.model.journal.journal import ActivityKind

name_of = methodcaller("name")
start_ns_of = methodcaller("start_ns")
duration_ns_of = methodcaller("duration_ns")
correlation_id_of = methodcaller("correlation_id")
linked_correlation_id_of = methodcaller("linked_correlation_id")
device_index_of = methodcaller("device_index")
stream_of = methodcaller("device_resource_id")
thread_of = methodcaller("start_thread_id")
sequence_of = methodcaller("sequence_nr")
forward_thread_of = methodcaller("fwd_thread_id")
device_type_of = methodcaller("device_type")
events_of = methodcaller("events")
"""The events of a profile's result."""

_activity_type = methodcaller("activity_type")
_is_user_annotation = methodcaller("is_user_annotation")
_dtypes = methodcaller("dtypes")
_values = methodcaller("concrete_inputs")
_shapes, _nested_shapes = methodcaller("shapes"), methodcaller("structured_input_shapes")
_nested_strides = methodcaller("structured_input_strides")

_EVENT_KINDS = {
    "cpu_op": ActivityKind.HOST,
    "kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.COPY,
    "gpu_memset": ActivityKind.COPY,
}
ALL_TIMES = 1 << 62
"""A time in Unix ns after all others."""

_DRIVER_CALLS = ("cuda", "cu", "hip")

_LONGEST = 16
"""Maximum length of a stored list argument. Longer lists are those of an optimizer over all parameters."""


_HOST_NAMES = ("aten::", "autograd::")
"""Prefixes of the names of operators. No kernel has one of these."""

_COMMON_CALLS = frozenset(
    {
        *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync"),
        *("cudaMemsetAsync", "cudaStreamIsCapturing", "cudaStreamSynchronize", "cudaDeviceSynchronize"),
        *("cudaEventRecordWithFlags", "cudaEventQuery", "cudaFuncGetAttributes", "cudaGraphLaunch"),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        "INVALID",
    }
)
"""Functions of the CUDA runtime and driver. No kernel can have the name of one.

The last one is Kineto's name for all functions that its version does not know. Its ids are not those of operators.
"""

_OVERHEADS = frozenset(
    {
        *("Driver Compiler", "Runtime Triggered Module Loading", "Lazy Function Loading", "Command Buffer Full"),
        *("Buffer Flush", "Activity Buffer Request", "UVM Activity Init"),
    }
)
"""CUPTI's records of its own work and the driver's. Kineto puts them into the thread of the operator that waits."""

_ANNOTATIONS = frozenset({"TorchDynamo Cache Lookup"})
"""Ranges of torch that Kineto gives the kind of an operator. Nothing of the program runs in them."""

_NOT_HOST = _COMMON_CALLS | _OVERHEADS | _ANNOTATIONS


def kind_of_event(event: Any) -> ActivityKind | None:
    """Return the kind of a Kineto event; None if it is not an operator, a kernel or a copy."""
    return kinds_of([event], [name_of(event)])[0]


def kinds_of(events: list[Any], names: list[str]) -> list[ActivityKind | None]:
    """Return the kind of each event, as :func:`kind_of_event`.

    torch before 2.13 does not report the kind. There, it is inferred from name and device. Reading the device takes
    0.8 µs, so it is not read where the name is enough.

    Args:
        events: Kineto's events.
        names: Their names.
    """
    if events and hasattr(events[0], "activity_type"):
        kinds = map(_EVENT_KINDS.get, map(_activity_type, events))
        return [None if name in _ANNOTATIONS else kind for name, kind in zip(names, kinds, strict=True)]
    known = {
        name: None if name in _NOT_HOST else ActivityKind.HOST
        for name in set(names)
        if name in _NOT_HOST or name.startswith(_HOST_NAMES)
    }
    return [
        known[name] if name in known else _kind_by_device(event, name)
        for event, name in zip(events, names, strict=True)
    ]


def _kind_by_device(event: Any, name: str) -> ActivityKind | None:
    if device_type_of(event) == _C._autograd.DeviceType.CPU:
        is_call = name.startswith(_DRIVER_CALLS) and name[-1:].isalnum() and "::" not in name and "." not in name
        return None if is_call else ActivityKind.HOST
    if _is_annotation(event):
        return None
    return ActivityKind.COPY if name.startswith(("Memcpy", "Memset")) else ActivityKind.KERNEL


def _is_annotation(event: Any) -> bool:
    """Return whether a device event mirrors a host range, such as ``Optimizer.step#AdamW.step``."""
    if hasattr(event, "is_user_annotation"):
        return bool(_is_user_annotation(event))
    return bool(name_of(event).startswith("Optimizer."))


def inputs_of(event: Any) -> list[Any] | None:
    """Return ``[shapes, strides, dtypes, values]`` of an operator's inputs, as JSON values; None if not recorded.

    For a list of tensors, ``shapes`` has a list of shapes if this torch records them. ``strides`` is None if this torch
    does not record them. ``values`` has numbers and lists of numbers, and None for other arguments.
    """
    dtypes = _dtypes(event) if hasattr(event, "concrete_inputs") else []
    if not dtypes:
        return None
    shapes = (_nested_shapes if hasattr(event, "structured_input_shapes") else _shapes)(event)
    strides = _nested_strides(event) if hasattr(event, "structured_input_strides") else None
    values = [_number(value) for value in _values(event)]
    return [list(shapes), strides, list(dtypes), values or [None] * len(dtypes)]


def _number(value: Any) -> Any:
    """Return a bool, a finite number or a short list of them; None for other values."""
    if isinstance(value, (list, tuple)):
        return [_number(one) for one in value] if len(value) <= _LONGEST else None
    return value if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)) else None


_LAUNCHES = {
    "cudaLaunchKernel": ActivityKind.KERNEL,
    "cudaLaunchKernelExC": ActivityKind.KERNEL,
    "cudaLaunchCooperativeKernel": ActivityKind.KERNEL,
    "cuLaunchKernel": ActivityKind.KERNEL,
    "cuLaunchKernelEx": ActivityKind.KERNEL,
    "cudaMemcpyAsync": ActivityKind.COPY,
    "cudaMemsetAsync": ActivityKind.COPY,
}
"""Calls that launch a kernel, a copy or a fill, and which of them."""

_CAPTURE_BEGINS, _CAPTURE_ENDS = "cudaStreamBeginCapture", "cudaStreamEndCapture"


def captured_launches(events: list[Any], names: list[str]) -> list[tuple[Any, ActivityKind]]:
    """Return the calls that launch work into the CUDA graph that is captured, in order of time.

    Args:
        events: Kineto's events of one capture.
        names: Their names.
    """
    found, begins_ns, ends_ns = [], ALL_TIMES, 0
    for event, name in zip(events, names, strict=True):
        if name == _CAPTURE_BEGINS:
            begins_ns = min(begins_ns, start_ns_of(event))
        elif name == _CAPTURE_ENDS:
            ends_ns = max(ends_ns, start_ns_of(event))
        elif name in _LAUNCHES:
            found.append((start_ns_of(event), event, _LAUNCHES[name]))
    found.sort(key=itemgetter(0))
    return [(event, kind) for start_ns, event, kind in found if begins_ns <= start_ns < ends_ns]


def graph_launches(events: list[Any], names: list[str], until_ns: int) -> dict[int, Any]:
    """Return the calls that launched CUDA graphs before a given time, by correlation id.

    No operator event covers them, so their kernels have no other launch.

    Args:
        events: Kineto's events.
        names: Their names.
        until_ns: The time, in Unix ns.
    """
    return {
        correlation_id_of(event): event
        for event, name in zip(events, names, strict=True)
        if name == "cudaGraphLaunch" and start_ns_of(event) < until_ns
    }
