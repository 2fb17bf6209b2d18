"""Names of the kernels that operators launch, from Kineto, for operators without names in the graph's text.

This runs after all measurements, because launches can be slower once CUPTI was used in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gpuledger.collect.adapter import kineto, torch_private
from gpuledger.collect.adapter.kineto_events import kind_of_event
from gpuledger.errors import GpuLedgerError
from gpuledger.model.journal.journal import ActivityKind
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Mode
from gpuledger.ops.database.operator_database import OperatorDatabase
from gpuledger.ops.measure.copies import make_copies
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.one import allowed, refuse_too_large

AT_ONCE = 200
"""Operators per Kineto session: buffers stay small, and names are stored regularly."""
RANGE = "gpuledger.operator."
DEVICE_KINDS = frozenset({ActivityKind.KERNEL, ActivityKind.COPY})


_CPU = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]  # not exported


def name_kernels(database: OperatorDatabase, place: Device) -> int:
    """Return the number of operators with new kernel names; 0 on a CPU.

    Args:
        database: Valid records of this device and software without kernel names are completed.
        place: The device.
    """
    if not place.on_card or torch_private.is_profiling():
        return 0
    bare = {
        one.key_digest: None for one in database.records(place.environment) if one.status == "ok" and not one.kernels
    }
    keys = list(database.keys(list(bare)).values())
    named = 0
    for start in range(0, len(keys), AT_ONCE):
        found = kernels_of_keys(keys[start : start + AT_ONCE], place, torch.cuda.synchronize, DEVICE_KINDS)
        database.put_kernels(found, place.environment)
        named += len(found)
    return named


def kernels_of_keys(
    keys: Sequence[OperatorKey], place: Device, wait: Callable[[], None], kinds: frozenset[ActivityKind]
) -> dict[str, tuple[str, ...]]:
    """Return key digest -> names of the kernels of one call; without operators that fail.

    Args:
        keys: The operators; each is called once, eagerly, with its own inputs.
        place: The device.
        wait: Waits for the device.
        kinds: Kinds of activities to include.

    Source: Kineto activities that begin within the range around a call, which ends with a synchronization.
    """
    profiler = kineto.Profiler()
    profiler.start()
    try:
        for number, key in enumerate(keys):
            _call_in_range(f"{RANGE}{number}", key, place, wait)
    finally:
        events = profiler.stop(wait=True)
    return {keys[number].digest: names for number, names in names_in_ranges(events, kinds).items()}


def _call_in_range(name: str, key: OperatorKey, place: Device, wait: Callable[[], None]) -> None:
    """Call an operator within a range. Errors are ignored: the operator then has no names."""
    try:
        refuse_too_large(key, place)
        with torch.no_grad(), allowed(key):
            (call,) = make_copies(key, Mode.HOT, place)
            call()
            wait()
            with torch_private.open_range(name):
                call()
                wait()
    except (RuntimeError, MemoryError, TypeError, ValueError, GpuLedgerError):
        wait()  # its work must not be in the next range


def names_in_ranges(events: Iterable[Any], kinds: frozenset[ActivityKind]) -> dict[int, tuple[str, ...]]:
    """Return range number -> distinct names of the activities that begin within the range, in order."""
    found = list(events)
    ranges = {
        int(event.name().removeprefix(RANGE)): (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in found
        if event.name().startswith(RANGE) and event.device_type() == _CPU
    }
    activities = sorted(
        (event.start_ns(), event.name())
        for event in found
        if kind_of_event(event) in kinds and not event.name().startswith(RANGE)
    )
    named = {
        number: tuple(dict.fromkeys(name for start_ns, name in activities if low <= start_ns <= high))
        for number, (low, high) in ranges.items()
    }
    return {number: names for number, names in named.items() if names}
