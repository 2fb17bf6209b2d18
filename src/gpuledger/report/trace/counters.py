"""What a trace shows of one rank as counters: the allocator's bytes, and the readings of the GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.lifetimes import device_indices
from gpuledger.analyze.memory.timeline import build_timeline, thin
from gpuledger.analyze.samples.series import known_values
from gpuledger.model.arrow_numbers import to_numbers
from gpuledger.report.trace.names import shown
from gpuledger.units import device_label

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

I64 = NDArray[np.int64]
POINTS = 8000
"""Moments of one counter; a longer one is thinned, its highest and lowest points kept."""
READINGS = {
    "used_bytes": "GPU used, bytes",
    "power_instant_w": "power, W",
    "power_average_w": "power, mean of the last second, W",
    "sm_clock_mhz": "SM clock, MHz",
    "temperature_c": "temperature, °C",
}
"""Column of ``samples`` -> the counter's name."""


@dataclass(frozen=True)
class Counter:
    """One or several values over time: ``t_ns`` int64[n], never falling, ``values`` by the name of the series."""

    name: str
    t_ns: I64
    values: dict[str, list[Any]]


def read_counters(rank: Rank) -> list[Counter]:
    """Return the counters of one rank, by device; what was not read has none."""
    found: list[Counter] = []
    for device in device_indices(rank):
        found += _memory(rank, device)
    return found + _readings(rank)


def _memory(rank: Rank, device_idx: int) -> list[Counter]:
    timeline = build_timeline(rank, device_idx, POINTS)
    where = device_label(device_idx)
    allocated = {"allocated": timeline.bytes.sum(axis=0).tolist()}
    reserved = {} if device_idx < 0 else {"reserved": timeline.reserved_bytes.tolist()}
    categories = {shown(name): row.tolist() for name, row in zip(timeline.categories, timeline.bytes, strict=True)}
    return [
        Counter(f"{where} bytes", timeline.t_ns, allocated | reserved),
        Counter(f"{where} bytes by category", timeline.t_ns, categories),
    ]


def _readings(rank: Rank) -> list[Counter]:
    table = rank.table("samples", ("t_ns", "device_idx", *READINGS))
    devices = to_numbers(table["device_idx"])
    found = []
    for column, name in READINGS.items():
        for device in np.unique(devices).tolist():
            times, values = known_values(table, column, devices == device)
            if values.size:
                kept = thin(values, times, POINTS)
                found.append(Counter(f"{device_label(device)} {name}", times[kept], {"value": values[kept].tolist()}))
    return found
