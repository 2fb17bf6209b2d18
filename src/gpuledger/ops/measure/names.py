"""Names of the kernels that operators launch, from Kineto, where a graph's own text does not tell them.

All that has to be measured is measured before: CUPTI, once begun, can leave a process's launches slower.
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
from gpuledger.ops.measure.one import allowed, refuse_too_large
from gpuledger.ops.measure.place import Place

AT_ONCE = 200
"""Operators in one session of Kineto's: its buffers stay small, and what was named is kept after a kill."""
RANGE = "gpuledger.operator."
DEVICE_KINDS = frozenset({ActivityKind.KERNEL, ActivityKind.COPY})


_CPU = torch.autograd.DeviceType.CPU  # type: ignore[attr-defined]  # not exported


def name_kernels(database: OperatorDatabase, place: Place) -> int:
    """Return of how many operators measured on a GPU the kernels were named; none on a processor.

    Args:
        database: Its good records of this device and software that name no kernel are completed.
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
    keys: Sequence[OperatorKey], place: Place, wait: Callable[[], None], kinds: frozenset[ActivityKind]
) -> dict[str, tuple[str, ...]]:
    """Return the names of what one call of each operator launches, by the key's digest; none for those that fail.

    Args:
        keys: The operators; each is called once, eagerly, with its own inputs.
        place: The device.
        wait: Waits for the device.
        kinds: The activities that count.

    Source: Kineto's activities that begin within the range around a call, which ends when the device is done.
    """
    profiler = kineto.Profiler()
    try:
        for number, key in enumerate(keys):
            _call_in_range(f"{RANGE}{number}", key, place, wait)
    finally:
        events = profiler.stop(wait=True)
    return {keys[number].digest: names for number, names in names_in_ranges(events, kinds).items()}


def _call_in_range(name: str, key: OperatorKey, place: Place, wait: Callable[[], None]) -> None:
    """Call an operator within a range; one that fails was recorded as failed, or has no name for that once."""
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
        wait()  # what it began belongs to no other range


def names_in_ranges(events: Iterable[Any], kinds: frozenset[ActivityKind]) -> dict[int, tuple[str, ...]]:
    """Return the names of the activities that begin within each numbered range, each once, in their order."""
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
