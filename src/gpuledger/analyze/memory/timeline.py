"""Memory over time, reduced to as many points as a screen can show, with all peaks kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.breakdown import coded_categories
from gpuledger.analyze.memory.instant import opened_ns
from gpuledger.analyze.memory.lifetimes import (
    I64,
    Lives,
    allocated_curve,
    distinct,
    pick_device,
    read_labels,
    read_lives,
    read_numbers,
    reserved_curve,
    sums_at,
)
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.errors import UsageError
from gpuledger.model.accounts import CATEGORIES, ROUNDING

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

_KEPT_PER_BUCKET = 4


@dataclass(frozen=True)
class Timeline:
    """Bytes by category at selected events.

    ``index`` and ``t_ns`` int64[n]; ``bytes`` int64[len(categories), n]; ``reserved_bytes`` int64[n]. ``categories``
    end with ``rounding``, so that a column sums to the allocated bytes at its index. The highest column is the peak.
    ``has_times`` is False on a simulated GPU, where ``t_ns`` is the number of the event.
    """

    device_idx: int
    index: I64
    t_ns: I64
    categories: tuple[str, ...]
    bytes: I64
    reserved_bytes: I64
    has_times: bool = True


@dataclass(frozen=True)
class Band:
    """An interval of time: a ``step`` or a ``phase``, with its label.

    On a simulated GPU there are no times: ``start_ns`` and ``end_ns`` are then the first and the last event.
    """

    kind: str
    label: str
    step: int
    start_ns: int
    end_ns: int


def build_timeline(rank: Rank, device_idx: int | None = None, points: int = 4000) -> Timeline:
    """Return the bytes by category over the recording, at no more than ``points`` events.

    The events are divided into buckets, half of them of equal time and half of equal event count. Of each bucket, the
    first, highest, lowest and last event are kept, with all categories at these events.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: there is no such device, or ``points`` is too small to keep a peak.

    Source: caching allocator's history, exact at the events kept.
    """
    if points < 2 * _KEPT_PER_BUCKET:
        raise UsageError(f"points {points}: too few", hint=f"Use {2 * _KEPT_PER_BUCKET} or more")
    device = pick_device(rank, device_idx)
    lives = read_lives(rank, device)
    curve = allocated_curve(lives)
    times = event_times_ns(rank, lives)
    kept = thin(curve.bytes, times, points)
    index = curve.index[kept]
    reserved = reserved_curve(rank, device)
    place = np.searchsorted(reserved.index, index, side="right") - 1
    categories, stacked = _by_category(rank, lives, index)
    return Timeline(
        device_idx=device,
        index=index,
        t_ns=times[kept],
        categories=categories,
        bytes=stacked,
        reserved_bytes=np.where(place >= 0, reserved.bytes[np.maximum(place, 0)], 0),
        has_times=rank.manifest.recorder.has_measured_times,
    )


def bands(rank: Rank, device_idx: int) -> tuple[Band, ...]:
    """Return the steps and then the phases in time order. Adjacent pieces of one phase are joined.

    A phase ends with its step at the latest: the time until the next event is a pause of the recorder, or idle.
    """
    timed = rank.manifest.recorder.has_measured_times
    found = [
        Band("step", f"step {step}", step, start, end)
        for step, start, end in zip(*_columns(rank, "steps", device_idx, timed=timed), strict=True)
    ]
    step_end_ns = {band.step: band.end_ns for band in found}
    codes, words = read_labels(rank, "spans", "phase", device_idx)
    kinds, kind_words = read_labels(rank, "spans", "kind", device_idx)
    phases: list[Band] = []
    columns = (*_columns(rank, "spans", device_idx, timed=timed), codes.tolist(), kinds.tolist())
    rows = sorted(zip(*columns, strict=True), key=_start)
    for step, start, end, code, kind in rows:
        if kind < 0 or kind_words[kind] != "phase" or code < 0 or (start < 0 and not timed):
            continue
        end = max(start, min(end, step_end_ns.get(step, end)))
        last = phases[-1] if phases else None
        if last is not None and (last.label, last.step) == (words[code], step):
            phases[-1] = Band("phase", last.label, step, last.start_ns, max(last.end_ns, end))
        else:
            phases.append(Band("phase", words[code], step, start, end))
    return (*sorted(found, key=lambda band: band.start_ns), *phases)


def thin(values: I64 | NDArray[np.float64], times_ns: I64, points: int) -> I64:
    """Return at most ``points`` ascending positions that keep first, highest, lowest and last of every bucket."""
    if values.size <= points:
        return np.arange(values.size)
    buckets = points // _KEPT_PER_BUCKET
    by_count = np.linspace(0, values.size, buckets // 2 + 1).astype(np.int64)[:-1]
    by_time = np.searchsorted(times_ns, np.linspace(times_ns[0], times_ns[-1], buckets - buckets // 2 + 1)[:-1])
    starts = np.unique(np.concatenate((by_count, by_time)))
    starts = starts[starts < values.size]
    ends = np.append(starts[1:], values.size)
    extremes = [
        (start + int(np.argmax(values[start:end])), start + int(np.argmin(values[start:end])))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.unique(np.concatenate((starts, ends - 1, np.array(extremes, dtype=np.int64).ravel())))


def _start(row: tuple[int, ...]) -> int:
    return row[1]


def _columns(rank: Rank, table: str, device_idx: int, *, timed: bool) -> list[list[int]]:
    """Return step, start and end of each row: times, or events if nothing has a time."""
    edges = ("start_ns", "end_ns") if timed else ("start_index", "end_index")
    return [read_numbers(rank, table, name, device_idx).tolist() for name in ("step", *edges)]


def event_times_ns(rank: Rank, lives: Lives) -> I64:
    """Return the host time of every event of the allocated curve.

    The times are in ascending order even if the clock was set back. Events without a time get the time before. On a
    simulated GPU there are no times, and the event's number is used.
    """
    freed = lives.free_requested_index != NEVER
    index, place = distinct(np.concatenate((lives.alloc_index, lives.free_requested_index[freed])))
    if not rank.manifest.recorder.has_measured_times:
        return np.maximum(index, 0)
    born_ns = read_numbers(rank, "blocks", "alloc_ns", lives.device_idx)
    freed_ns = read_numbers(rank, "blocks", "free_requested_ns", lives.device_idx)[freed]
    known_ns = np.concatenate((np.where(lives.alloc_index < 0, -1, born_ns), freed_ns))
    times = np.full(int(place.max()) + 1, opened_ns(rank, lives.device_idx), dtype=np.int64)
    times[place[known_ns >= 0]] = known_ns[known_ns >= 0]
    return np.maximum.accumulate(times)


def _by_category(rank: Rank, lives: Lives, index: I64) -> tuple[tuple[str, ...], I64]:
    """Return the categories that occur, in display order, then rounding, and their bytes at ``index``."""
    codes, words = coded_categories(rank, lives.device_idx)
    present = {words[code] for code in np.flatnonzero(np.bincount(codes, minlength=len(words)))}
    names = [name for name in CATEGORIES if name in present] + sorted(present - set(CATEGORIES))
    group_of = np.array([names.index(word) if word in present else 0 for word in words], dtype=np.int64)
    requested, rounding = sums_at(index, lives, group_of[codes], len(names))
    return (*names, ROUNDING), np.concatenate((requested, rounding[None, :]))
