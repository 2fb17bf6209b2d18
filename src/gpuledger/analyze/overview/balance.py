"""The balance: the GPU's used bytes, line by line down to categories, with unaccounted memory as a line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.breakdown import Breakdown, break_down
from gpuledger.analyze.memory.graph_pools import kept_free_bytes
from gpuledger.analyze.memory.instant import Instant, resolve_instant
from gpuledger.analyze.memory.lifetimes import I64, read_lives, read_numbers, reserved_curve
from gpuledger.analyze.overview.process_bytes import (
    CONTEXT,
    LATER,
    LIBRARY,
    NCCL,
    OutsideBytes,
    list_processes,
    read_outside,
)
from gpuledger.analyze.overview.summary import capacity_bytes
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.accounts import CATEGORIES, ROUNDING
from gpuledger.model.manifest import Libraries
from gpuledger.model.shown import Shown
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

HISTORY = "caching allocator's history"
DISPATCH = "operators at the dispatcher"
FILE = "the imported file"
STATED_POOL = "stated"
"""The pool of a segment that stands for all of a cache, as a file states it."""
GRAPH_POOLS = "graph_pools"
_BEYOND = ("free_segments", "fragmented", "awaiting_free")
NVML_MEMORY = "NVML memory info v2"
NVML_PROCESSES = "NVML process list"
MEASURED = "measured separately"
NVML_IN_PROCESS = "NVML process list minus reserved memory"


@dataclass(frozen=True)
class BalanceLine:
    """One line. ``bytes`` is None if it could not be measured; ``note`` then says why.

    Level 0 divides the GPU's capacity, level 1 the line ``used``, level 2 the line ``allocated``. CPU tensors have no
    line of level 0.
    """

    name: str
    bytes: int | None
    level: int
    source: str
    note: str


@dataclass(frozen=True)
class Balance(Shown):
    """The lines at one instant. Level 1 sums to ``used_bytes``, level 2 to the line ``allocated``.

    Without a sample of the GPU, ``used_bytes`` and ``unaccounted_bytes`` are None.
    """

    instant: Instant
    device_name: str
    total_bytes: int | None
    used_bytes: int | None
    process_bytes: int | None
    lines: tuple[BalanceLine, ...]
    unaccounted_bytes: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CardAtInstant:
    """A sample of the GPU from NVML, adjusted to an instant of the allocator's history; None if unknown."""

    used_bytes: int | None = None
    driver_bytes: int | None = None
    process_bytes: int | None = None
    other_bytes: int | None = None
    outside: OutsideBytes | None = None
    notes: tuple[str, ...] = ()


def build_balance(rank: Rank, device_idx: int | None = None, at: str = "peak", step: int | None = None) -> Balance:
    """Return the memory balance of one device at ``at``, within ``step`` if it is given.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: there is no such device, ``at`` names no instant, or the step was not recorded.

    Source: each line has its own. Unaccounted memory is what the GPU reports beyond all other lines.
    """
    instant = resolve_instant(rank, at, device_idx, step)
    breakdown = break_down(rank, instant, by=("category",))
    reading = read_card(rank, instant)
    total = capacity_bytes(rank, instant.device_idx)
    inside = [*_card_lines(rank, reading), *_torch_lines(rank, breakdown)]
    unaccounted = _unaccounted(reading, inside, rank.manifest.collectives)
    lines: tuple[BalanceLine, ...] = (*inside, *_category_lines(breakdown))
    if instant.device_idx >= 0:
        lines = (*_capacity_lines(total, reading), *lines, unaccounted)
    is_apart = any(line.source == MEASURED and line.bytes is not None for line in inside)
    apart = is_apart and rank.manifest.libraries and rank.manifest.libraries.source
    notes = (*reading.notes, f"CUDA context and libraries: {apart}.") if apart and reading.used_bytes else reading.notes
    name = rank.manifest.device(instant.device_idx).name or ("CPU" if instant.device_idx < 0 else "")
    return Balance(instant, name, total, reading.used_bytes, reading.process_bytes, lines, unaccounted.bytes, notes)


def read_card(rank: Rank, instant: Instant) -> CardAtInstant:
    """Return the first GPU sample after the instant, or else the last before it, adjusted to the instant.

    Segments reserved or released between sample and instant are known exactly and are corrected for, with a note.
    Everything else is assumed to be unchanged.

    Source: NVML memory info v2 and process list.
    """
    device = instant.device_idx
    if device < 0:
        return CardAtInstant(notes=("CPU tensors: there is no GPU to compare with.",))
    times, index, used = _placed_readings(rank, device)
    if not times.size:
        return CardAtInstant(
            notes=("The GPU was not sampled, so its used memory, context and unaccounted memory are unknown.",)
        )
    place = _nearest(rank, device, index, instant.index)
    reserved = reserved_curve(rank, device)
    moved = reserved.at(int(index[place])) - reserved.at(instant.index)
    notes = []
    if moved:
        notes.append(
            f"The GPU was sampled at event {int(index[place])}, when segments were {format_bytes(abs(moved))} "
            f"{'larger' if moved > 0 else 'smaller'}. The balance is corrected for that."
        )
    processes = list_processes(rank, device, int(times[place]))
    own = processes.own_bytes
    row = np.flatnonzero(read_numbers(rank, "samples", "t_ns", device) == times[place])[0]
    driver = int(read_numbers(rank, "samples", "driver_bytes", device)[row])
    return CardAtInstant(
        used_bytes=int(used[place]) - moved,
        driver_bytes=driver if driver >= 0 else None,
        process_bytes=None if own is None else own - moved,
        other_bytes=processes.other_bytes,
        outside=read_outside(rank, device, int(times[place])),
        notes=(*notes, *processes.notes),
    )


def _placed_readings(rank: Rank, device_idx: int) -> tuple[I64, I64, I64]:
    """Return time, event index and used bytes of the samples with a known position among the events."""
    times, used = (read_numbers(rank, "samples", name, device_idx) for name in ("t_ns", "used_bytes"))
    index = read_numbers(rank, "counters", "event_index", device_idx, NEVER)
    index_at = dict(zip(read_numbers(rank, "counters", "t_ns", device_idx).tolist(), index.tolist(), strict=True))
    placed = np.array([index_at.get(time, NEVER) for time in times.tolist()], dtype=np.int64)
    known = (placed != NEVER) & (used >= 0)
    return times[known], placed[known], used[known]


def _nearest(rank: Rank, device_idx: int, index: I64, wanted: int) -> int:
    """Return the position of the best sample: first unchanged segments, then after before before, then the nearest."""
    taken = read_numbers(rank, "segments", "alloc_index", device_idx)
    freed = read_numbers(rank, "segments", "free_index", device_idx, NEVER)
    changes = np.sort(np.concatenate((taken, freed[freed != NEVER])))
    between = np.abs(np.searchsorted(changes, index, side="right") - np.searchsorted(changes, wanted, side="right"))
    return int(np.lexsort((np.abs(index - wanted), index < wanted, between > 0))[0])


def _capacity_lines(total_bytes: int | None, reading: CardAtInstant) -> list[BalanceLine]:
    """Return the lines that divide the GPU's capacity."""
    unused = _difference(total_bytes, reading.used_bytes, reading.driver_bytes)
    sizes = {"driver": reading.driver_bytes, "unused": unused}
    lines = [
        BalanceLine(name, size, 0, NVML_MEMORY, "" if size is not None else "not sampled")
        for name, size in sizes.items()
    ]
    note = "" if reading.used_bytes is not None else "the GPU was not sampled"
    return [*lines, BalanceLine("used", reading.used_bytes, 0, NVML_MEMORY, note)]


def _card_lines(rank: Rank, reading: CardAtInstant) -> list[BalanceLine]:
    if reading.used_bytes is None:
        return []
    apart = _measured_lines(rank) if reading.outside is None else _outside_lines(rank, reading.outside)
    note = "" if reading.other_bytes is not None else "unknown; part of the unaccounted memory"
    return [BalanceLine("other_processes", reading.other_bytes, 1, NVML_PROCESSES, note), *apart]


def _measured_lines(rank: Rank) -> list[BalanceLine]:
    """Return context and libraries as measured in a process of their own."""
    measured = rank.manifest.libraries or Libraries()
    values = {CONTEXT: measured.context_bytes, LIBRARY: measured.library_bytes}
    unknown = "not measured; part of the unaccounted memory"
    return [
        BalanceLine(name, value, 1, MEASURED, "" if value is not None else unknown) for name, value in values.items()
    ]


def _outside_lines(rank: Rank, outside: OutsideBytes) -> list[BalanceLine]:
    """Return context, libraries and NCCL as read in the process, each with the steps in which its memory came."""
    was_read = bool(outside.context_when)
    with_nccl = outside.nccl_bytes is None and rank.manifest.collectives == "nccl"
    notes = {CONTEXT: outside.context_when, LIBRARY: outside.when(LIBRARY)}
    sizes = {CONTEXT: outside.context_bytes, LIBRARY: outside.library_bytes, NCCL: outside.nccl_bytes}
    if outside.context_bytes is None:
        notes[LIBRARY] += ", with the CUDA context"
    if with_nccl:
        notes[CONTEXT if was_read else LIBRARY] += ", may include NCCL's buffers"
    if outside.nccl_bytes is not None:
        notes[NCCL] = f"during the first collective of a process group: {outside.when(NCCL) or 'nothing'}"
    apart = {CONTEXT} if not was_read else set()
    return [
        BalanceLine(name, size, 1, MEASURED if name in apart else NVML_IN_PROCESS, notes[name])
        for name, size in sizes.items()
        if size is not None
    ]


def _torch_lines(rank: Rank, breakdown: Breakdown) -> list[BalanceLine]:
    """Return the lines that sum to reserved bytes."""
    of_graphs = int(kept_free_bytes(rank, breakdown.instant.device_idx, breakdown.instant.index).sum())
    free_segments = _free_segment_bytes(rank, breakdown.instant)
    awaiting = breakdown.active_bytes - breakdown.allocated_bytes
    fragmented = breakdown.reserved_bytes - free_segments - of_graphs - breakdown.active_bytes
    if rank.manifest.recorder.is_imported:
        pools = set(rank.table("segments", ("pool",)).column("pool").to_pylist())
        if pools <= {STATED_POOL}:  # no segment, or the sum of all
            rest = fragmented if pools else None
            sizes = dict.fromkeys(_BEYOND) | {"fragmented": rest}
            notes = dict.fromkeys(_BEYOND, "not in the file")
            notes |= {"fragmented": "cached memory without entries"} if pools else {}
            beside = [BalanceLine(name, size, 1, FILE, notes[name]) for name, size in sizes.items()]
            return [*beside, BalanceLine("allocated", breakdown.allocated_bytes, 1, FILE, "")]
    if breakdown.instant.device_idx < 0:  # CPU tensors are not cached
        return [BalanceLine("allocated", breakdown.allocated_bytes, 1, DISPATCH, "")]
    kept = [BalanceLine(GRAPH_POOLS, of_graphs, 1, HISTORY, "not allocated, but kept for replays")] if of_graphs else []
    return [
        BalanceLine("free_segments", free_segments, 1, HISTORY, "empty_cache() would free it"),
        *kept,
        BalanceLine("fragmented", fragmented, 1, HISTORY, "free memory inside segments in use"),
        BalanceLine("awaiting_free", awaiting, 1, HISTORY, "freed, but another stream may still use it"),
        BalanceLine("allocated", breakdown.allocated_bytes, 1, HISTORY, ""),
    ]


def _category_lines(breakdown: Breakdown) -> list[BalanceLine]:
    sizes = {account.category: account.bytes for account in breakdown.accounts}
    order = [*CATEGORIES, *sorted(set(sizes) - {*CATEGORIES, ROUNDING}), ROUNDING]
    source = HISTORY if breakdown.instant.device_idx >= 0 else DISPATCH
    return [BalanceLine(name, sizes[name], 2, source, "") for name in order if name in sizes]


def _free_segment_bytes(rank: Rank, instant: Instant) -> int:
    """Return the bytes of segments without an active block, except those of CUDA graphs.

    Source: caching allocator's history, exact; blocks are placed in segments by address.
    """
    device, index = instant.device_idx, instant.index
    address, size, taken = (
        read_numbers(rank, "segments", name, device) for name in ("address", "bytes", "alloc_index")
    )
    held = (taken <= index) & (read_numbers(rank, "segments", "free_index", device, NEVER) > index)
    held &= kept_free_bytes(rank, device, index) < size
    order = np.argsort(address[held])
    address, size = address[held][order], size[held][order]
    active = read_lives(rank, device).active_at(index)
    blocks = read_numbers(rank, "blocks", "address", device)[active]
    place = np.searchsorted(address, blocks, side="right") - 1
    used = np.zeros(address.size, dtype=bool)
    used[place[place >= 0]] = True
    return int(size[~used].sum())


def _unaccounted(reading: CardAtInstant, lines: list[BalanceLine], collectives: str | None) -> BalanceLine:
    """Return the line with the used bytes that are in no other line."""
    name, source = "unaccounted", "used minus all other lines"
    if reading.used_bytes is None:
        return BalanceLine(name, None, 1, source, "the GPU was not sampled")
    missing = [line.name.replace("_", " ") for line in lines if line.bytes is None]
    note = f"includes unmeasured parts: {', '.join(missing)}" if missing else "not explained by any line"
    if collectives == "nccl" and reading.outside is None:
        note += "; includes NCCL's buffers"
    if reading.outside is not None and (later := reading.outside.when(LATER)):
        note += f"; outside PyTorch's allocator came {later}"
    return BalanceLine(name, reading.used_bytes - sum(line.bytes or 0 for line in lines), 1, source, note)


def _difference(total: int | None, *parts: int | None) -> int | None:
    if total is None or any(part is None for part in parts):
        return None
    return total - sum(part or 0 for part in parts)
