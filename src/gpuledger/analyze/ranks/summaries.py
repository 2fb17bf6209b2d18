"""The summary of one rank: its devices, and bytes, time and energy by category and module."""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import Instant, find_peak, module_paths
from gpuledger.analyze.memory.lifetimes import device_indices, read_labels, read_numbers
from gpuledger.analyze.memory.peaks import allocator_peaks
from gpuledger.analyze.overview.summary import device_name
from gpuledger.analyze.step.energy import break_down_energy
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.times import break_down_time
from gpuledger.model.run import PARTS, write_table
from gpuledger.model.run_directory import rank_directories
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from gpuledger.model.run import Rank

SUMMARY, BREAKDOWN = "rank_summary", "breakdown"

AccountRow = tuple[int, str, str, int, int | None, float | None, float | None]
"""Values of the columns of ``breakdown``."""
_COLUMNS = {
    "blocks": (
        *("device_idx", "allocated_bytes", "requested_bytes", "alloc_index", "free_requested_index", "free_index"),
        *("alloc_ns", "step", "phase", "module_id", "category"),
    ),
    "counters": ("device_idx", "peak_allocated_bytes", "peak_reserved_bytes"),
    "steps": ("step", "kind", "recorded", "start_ns", "end_ns", "paused_ns"),
}
"""What a summary needs of tables that it reads in several places.

Of many ranks, each further read costs more than its values.
"""

_OF_SHARDS = ("module_id", "shard_bytes", "parts", "gradient_bytes", "state_bytes", "state_parts", "device_idx")


def has_summary(rank: Rank) -> bool:
    """Return whether a rank's summary was written."""
    return _has_summary(rank.directory)


def _has_summary(directory: Path) -> bool:
    return any((directory / SUMMARY).glob(PARTS))


def summary_files(rank: Rank) -> dict[str, list[str]]:
    """Return the files of a rank's written summary, by the name of their table; none if it was not written."""
    places = {name: str(rank.directory / name) for name in (SUMMARY, BREAKDOWN)}
    return {name: [f"{place}/{part}" for part in _names_in(place)] for name, place in places.items()}


def _names_in(place: str) -> list[str]:
    try:
        return fnmatch.filter(os.listdir(place), PARTS)  # of a thousand ranks, ten times faster than with pathlib
    except FileNotFoundError:
        return []


def write_summary(rank: Rank) -> None:
    """Write the summary of a rank if its run has several ranks, or if its program had.

    Raises:
        InputError: a directory to write to is a link, or a table of the rank is damaged.
        OSError: the tables cannot be written.
    """
    if rank.manifest.world is None and len(rank_directories(rank.directory.parent)) < 2:
        return
    for name, table in summary_tables(rank).items():
        write_table(rank.directory, table, name)


def complete_summary(rank: Rank, directory: Path) -> None:
    """Write the summary of a rank into its directory, or into that of a copy, if there is none.

    Raises:
        InputError: a directory to write to is a link, or a table of the rank is damaged.
        OSError: the tables cannot be written.
    """
    if _has_summary(directory):
        return
    for name, table in summary_tables(rank).items():
        write_table(directory, table, name)
    rank.forget_columns()


def summary_tables(rank: Rank) -> dict[str, pa.Table]:
    """Return the tables ``rank_summary`` and ``breakdown`` of a rank; without rows if it has no block."""
    import pyarrow as pa

    for name, columns in _COLUMNS.items():
        rank.table(name, columns)
    devices: list[dict[str, Any]] = []
    rows: list[AccountRow] = []
    for device_idx in device_indices(rank):
        peak, energy = find_peak(rank, device_idx), break_down_energy(rank, device_idx)
        devices.append(_device_row(rank, peak, None if energy is None else energy.step_energy_j))
        rows += _account_rows(rank, peak)
    schema = TABLES[BREAKDOWN].arrow_schema()
    by_column = zip(*rows, strict=True) if rows else ([] for _ in schema)
    accounts = [pa.array(values, field.type) for values, field in zip(by_column, schema, strict=True)]
    summaries = pa.Table.from_pylist(devices, TABLES[SUMMARY].arrow_schema())
    return {SUMMARY: summaries, BREAKDOWN: pa.table(accounts, schema=schema)}


_PEAKS = ("peak_allocated_bytes", "recorded_peak_allocated_bytes", "peak_reserved_bytes")
"""Columns that are those of the device's :class:`AllocatorPeaks`."""


def _device_row(rank: Rank, peak: Instant, step_energy_j: float | None) -> dict[str, Any]:
    peaks = allocator_peaks(rank, peak.device_idx)
    return {
        "device_idx": peak.device_idx,
        "device_name": device_name(rank, peak.device_idx),
        **{name: getattr(peaks, name) for name in _PEAKS},
        "coordinate": _coordinate(rank),
        "status": rank.manifest.status or "",
        "steps_seen": rank.manifest.steps_seen,
        **{f"peak_{name}": getattr(peak, name) for name in ("step", "phase", "module")},
        "step_time_ns": step_times(rank).median_ns,
        "step_energy_j": step_energy_j,
    }


def _coordinate(rank: Rank) -> str:
    """Return a rank's place in its device mesh, and its stages of a pipeline, such as ``dp=0,tp=1,stage=0+2``."""
    mesh, stages = rank.manifest.mesh, rank.manifest.pipeline_stages
    places = [] if mesh is None else [f"{name}={number}" for name, number in mesh.coordinates().items()]
    return ",".join([*places, "stage=" + "+".join(map(str, stages))] if stages else places)


def _account_rows(rank: Rank, peak: Instant) -> Iterable[AccountRow]:
    """Yield the rows of the device: bytes by category and module, then time and energy by module."""
    device_idx = peak.device_idx
    found = {
        (one.category, one.module): one.bytes for one in break_down(rank, peak, by=("category", "module")).accounts
    }
    expected = _expected(rank, peak, {category for category, _ in found})
    for key in [*found, *(key for key in expected if key not in found)]:
        yield device_idx, *key, found.get(key, 0), expected.get(key), None, None
    times, energy = break_down_time(rank, device_idx), break_down_energy(rank, device_idx)
    time_ns: Counter[str] = Counter()
    energy_j: Counter[str] = Counter()
    for spent in () if times is None else times.accounts:
        time_ns[spent.module] += spent.time_ns  # type: ignore[assignment]  # a Counter of floats
    for used in () if energy is None else energy.accounts:
        energy_j[used.module] += used.energy_j  # type: ignore[assignment]
    for module in dict.fromkeys((*time_ns, *energy_j)):
        yield device_idx, "", module, 0, None, time_ns.get(module), energy_j.get(module)


def _expected(rank: Rank, peak: Instant, there: set[str]) -> Counter[tuple[str, str]]:
    """Return the bytes that a rank has to hold at its peak, by category and module.

    These are its weights, its optimizer state if there is any at the peak, and its gradients if the peak is in an
    optimizer: before, some of them have not been computed. Modules that were made after the peak are left out.

    Source: shape, type and placements of each parameter, and the sizes of its device mesh.
    """
    expected: Counter[tuple[str, str]] = Counter()
    rows = rank.table("shards", _OF_SHARDS).to_pylist()
    if not rows:
        return expected
    device_idx = peak.device_idx
    paths, alone, later = module_paths(rank), len(device_indices(rank)) == 1, _made_after(rank, peak)
    has_state = not there.isdisjoint(("optimizer_state", "sharded_optimizer_state"))
    for row in rows:
        device = row["device_idx"]
        is_here = device is None or device == device_idx or (alone and (device < 0) == (device_idx < 0))
        if not is_here or row["module_id"] in later:
            continue
        kinds = [("weight", row["shard_bytes"], row["parts"])]
        if peak.phase == "optimizer":
            kinds.append(("gradient", row["gradient_bytes"], row["parts"]))
        if has_state:
            kinds.append(("optimizer_state", row["state_bytes"], row["state_parts"]))
        for name, size, parts in kinds:
            if size:
                expected[f"sharded_{name}" if parts > 1 else name, paths.get(row["module_id"], "")] += size
    return expected


def _made_after(rank: Rank, peak: Instant) -> set[int]:
    """Return the ids of the modules of which all weights were allocated after the peak."""
    codes, words = read_labels(rank, "blocks", "category", peak.device_idx)
    module, index = (read_numbers(rank, "blocks", name, peak.device_idx) for name in ("module_id", "alloc_index"))
    is_weight = np.isin(codes, [place for place, word in enumerate(words) if word in ("weight", "sharded_weight")])
    is_there = is_weight & (index <= peak.index)
    return {*module[is_weight].tolist()} - {*module[is_there].tolist()}
