"""Memory by module and category at many instants, computed in one pass over the blocks, for the report's timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.breakdown import coded_categories
from gpuledger.analyze.memory.instant import Instant, module_paths, resolve_instant, running_module
from gpuledger.analyze.memory.lifetimes import (
    I64,
    Lives,
    allocated_curve,
    distinct,
    read_labels,
    read_lives,
    read_numbers,
    reserved_curve,
)
from gpuledger.analyze.memory.lines.running import RunningModules

if TYPE_CHECKING:
    from gpuledger.analyze.memory.timeline import Timeline
    from gpuledger.model.run import Rank

OUTSIDE = -1
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class AccountSeries:
    """Requested bytes by (module, category) at ``instants``, as runs of equal bytes.

    Account ``a`` is one such pair: it has ``module_id[a]`` (:data:`OUTSIDE` outside modules), ``category[a]`` (a
    position in ``categories``) and the next ``run_count[a]`` runs. Run ``r`` means that the account has ``bytes[r]``
    from instant ``first[r]`` to ``last[r]``, both included. Without a run it has 0 bytes. Accounts are sorted by
    module, then category. ``allocated_bytes``, ``active_bytes``, ``reserved_bytes`` and ``rounding_bytes`` are
    int64[len(instants)]. Accounts and rounding sum to allocated bytes.
    """

    instants: tuple[Instant, ...]
    categories: tuple[str, ...]
    module_id: I64
    category: I64
    run_count: I64
    first: I64
    last: I64
    bytes: I64
    allocated_bytes: I64
    active_bytes: I64
    reserved_bytes: I64
    rounding_bytes: I64


def choose_instants(rank: Rank, timeline: Timeline, peak: Instant, limit: int) -> tuple[Instant, ...]:
    """Return at most ``limit`` instants of interest, the most important first.

    The order is: ``peak`` and the end; each step's peak, the highest first; the ends of the phases; and then the
    highest instants of equal parts of the timeline.
    """
    device = timeline.device_idx
    end = resolve_instant(rank, "end", device)
    labels: dict[int, str] = {peak.index: peak.label}
    labels.setdefault(end.index, end.label)
    for index, label in [*_step_peaks(rank, device), *_phase_ends(rank, device)]:
        if len(labels) < limit:
            labels.setdefault(index, label)
    for index in _highest_of_stretches(timeline, limit - len(labels)):
        labels.setdefault(index, "")
    known = {end.index: end, peak.index: peak}
    others = _describe_all(rank, device, {index: label for index, label in labels.items() if index not in known})
    return tuple((others | known)[index] for index in labels)


def build_account_series(rank: Rank, device_idx: int, instants: tuple[Instant, ...]) -> AccountSeries:
    """Return the bytes by module and category of one device at ``instants``, which are sorted.

    Source: caching allocator's history, exact.
    """
    instants = _in_time_order(sorted(instants, key=lambda instant: instant.index))
    lives = read_lives(rank, device_idx)
    points = np.array([instant.index for instant in instants], dtype=np.int64)
    born, died = np.searchsorted(points, lives.alloc_index), np.searchsorted(points, lives.free_requested_index)
    seen = born < died
    codes, labels = coded_categories(rank, device_idx)
    modules = read_numbers(rank, "blocks", "module_id", device_idx, OUTSIDE)
    keys, place = distinct((modules[seen] - OUTSIDE) * len(labels) + codes[seen])
    runs = _runs(place, born[seen], died[seen], lives.requested_bytes[seen], points.size)
    reserved = reserved_curve(rank, device_idx)
    rounded = (lives.allocated_bytes - lives.requested_bytes)[seen]
    return AccountSeries(
        instants=instants,
        categories=tuple(labels),
        module_id=keys // len(labels) + OUTSIDE,
        category=keys % len(labels),
        run_count=np.bincount(runs[0], minlength=keys.size).astype(np.int64),
        first=runs[1],
        last=runs[2],
        bytes=runs[3],
        allocated_bytes=_sums(born[seen], died[seen], lives.allocated_bytes[seen], points.size),
        active_bytes=_active_bytes(lives, points),
        reserved_bytes=np.array([reserved.at(index) for index in points.tolist()], dtype=np.int64),
        rounding_bytes=_sums(born[seen], died[seen], rounded, points.size),
    )


def keep_instants(series: AccountSeries, wanted: tuple[Instant, ...]) -> AccountSeries:
    """Return ``series`` limited to the instants with an index in ``wanted``."""
    indices = {instant.index for instant in wanted}
    kept = np.array([k for k, instant in enumerate(series.instants) if instant.index in indices], dtype=np.int64)
    first = np.searchsorted(kept, series.first)
    last = np.searchsorted(kept, series.last, side="right") - 1
    full = first <= last
    account = np.repeat(np.arange(series.module_id.size), series.run_count)[full]
    return replace(
        series,
        instants=tuple(series.instants[k] for k in kept.tolist()),
        run_count=np.bincount(account, minlength=series.module_id.size).astype(np.int64),
        first=first[full],
        last=last[full],
        bytes=series.bytes[full],
        allocated_bytes=series.allocated_bytes[kept],
        active_bytes=series.active_bytes[kept],
        reserved_bytes=series.reserved_bytes[kept],
        rounding_bytes=series.rounding_bytes[kept],
    )


def _runs(place: I64, born: I64, died: I64, sizes: I64, count: int) -> tuple[I64, I64, I64, I64]:
    """Return account, first instant, last instant and bytes of every non-empty run."""
    width = count + 1
    marks, at = distinct(np.concatenate((place * width + born, place * width + died)))
    change = np.zeros(marks.size, dtype=np.int64)
    np.add.at(change, at, np.concatenate((sizes, -sizes)))
    moves = change != 0
    marks, held = marks[moves], np.cumsum(change[moves])
    full = held > 0
    first, account = marks % width, marks // width
    last = np.append(marks[1:], 0) % width - 1
    return account[full], first[full], last[full], held[full]


def _sums(born: I64, died: I64, sizes: I64, count: int) -> I64:
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, born, sizes)
    np.subtract.at(change, died, sizes)
    return np.cumsum(change[:-1])


def _active_bytes(lives: Lives, points: I64) -> I64:
    born, died = np.searchsorted(points, lives.alloc_index), np.searchsorted(points, lives.free_index)
    return _sums(born, died, lives.allocated_bytes, points.size)


def _step_peaks(rank: Rank, device_idx: int) -> list[tuple[int, str]]:
    """Return index and label of the peak of each recorded step, highest first."""
    first, last, steps = (
        read_numbers(rank, "steps", name, device_idx) for name in ("start_index", "end_index", "step")
    )
    curve = allocated_curve(read_lives(rank, device_idx))
    found = []
    for begin, end, step in zip(first.tolist(), last.tolist(), steps.tolist(), strict=True):
        low, high = np.searchsorted(curve.index, (begin, end + 1))
        if begin >= 0 and low < high:
            highest = low + int(np.argmax(curve.bytes[low:high]))
            found.append((int(curve.bytes[highest]), int(curve.index[highest]), f"peak of step {step}"))
    return [(index, label) for _, index, label in sorted(found, key=lambda row: (-row[0], row[1]))]


def _phase_ends(rank: Rank, device_idx: int) -> list[tuple[int, str]]:
    """Return index and label of each phase's last event."""
    codes, labels = read_labels(rank, "spans", "phase", device_idx)
    kinds, kind_words = read_labels(rank, "spans", "kind", device_idx)
    last, steps = (read_numbers(rank, "spans", name, device_idx) for name in ("end_index", "step"))
    ends: dict[tuple[int, str], int] = {}
    for code, kind, index, step in zip(codes.tolist(), kinds.tolist(), last.tolist(), steps.tolist(), strict=True):
        if index >= 0 and code >= 0 and kind >= 0 and kind_words[kind] == "phase":
            ends[step, labels[code]] = max(index, ends.get((step, labels[code]), -1))
    return [
        (index, f"end of {phase}" + (f", step {step}" if step > 0 else "")) for (step, phase), index in ends.items()
    ]


def _highest_of_stretches(timeline: Timeline, count: int) -> list[int]:
    """Return the highest event of each part, ordered so that any first few of them cover the whole timeline."""
    if count <= 0:
        return []
    allocated = timeline.bytes.sum(axis=0)
    edges = np.linspace(timeline.t_ns[0], timeline.t_ns[-1] + 1, count + 1)
    starts = np.unique(np.searchsorted(timeline.t_ns, edges[:-1]))
    starts = starts[starts < allocated.size]  # a run without times is one part
    pieces = np.split(np.arange(allocated.size), starts[1:])
    highest = [int(timeline.index[piece[np.argmax(allocated[piece])]]) for piece in pieces]
    spread = np.argsort(np.arange(len(highest)) * _GOLDEN % 1)
    return [highest[place] for place in spread.tolist()]


def _describe_all(rank: Rank, device_idx: int, labels: dict[int, str]) -> dict[int, Instant]:
    """Return ``index -> instant``, from the block allocated or freed at that event, or else from the phases."""
    found = {index: Instant(device_idx, index, -1, 0, "", "", label) for index, label in labels.items()}
    wanted = np.array(sorted(labels), dtype=np.int64)
    for index, place in _phase_places(rank, device_idx, wanted).items():
        found[index] = replace(found[index], step=place[0], phase=place[1])
    for index_column, time_column in (
        ("free_index", "free_ns"),
        ("free_requested_index", "free_requested_ns"),
        ("alloc_index", "alloc_ns"),
    ):
        blocks, indices = _blocks_at(rank, device_idx, index_column, wanted)
        times = read_numbers(rank, "blocks", time_column, device_idx)[blocks]
        for index, t_ns in zip(indices.tolist(), times.tolist(), strict=True):
            found[index] = replace(found[index], t_ns=t_ns)
    _place_allocations(rank, device_idx, wanted, found)
    return found


def _blocks_at(rank: Rank, device_idx: int, column: str, wanted: I64) -> tuple[NDArray[np.intp], I64]:
    marks = read_numbers(rank, "blocks", column, device_idx)
    blocks = np.flatnonzero(np.isin(marks, wanted[wanted >= 0]))
    return blocks, marks[blocks]


def _place_allocations(rank: Rank, device_idx: int, wanted: I64, found: dict[int, Instant]) -> None:
    """Set step, phase and module of an instant from the block allocated there."""
    blocks, indices = _blocks_at(rank, device_idx, "alloc_index", wanted)
    codes, labels = read_labels(rank, "blocks", "phase", device_idx)
    steps = read_numbers(rank, "blocks", "step", device_idx)[blocks]
    paths, running = module_paths(rank), RunningModules(rank, device_idx)
    for index, code, step, block in zip(
        indices.tolist(), codes[blocks].tolist(), steps.tolist(), blocks.tolist(), strict=True
    ):
        phase = labels[code] if code >= 0 else ""
        module_id, line = running.at(block)
        module = running_module(phase, paths.get(module_id))
        found[index] = replace(found[index], step=step, phase=phase, module=module, line=line)


def _phase_places(rank: Rank, device_idx: int, wanted: I64) -> dict[int, tuple[int, str]]:
    codes, labels = read_labels(rank, "spans", "phase", device_idx)
    first, last, steps = (
        read_numbers(rank, "spans", name, device_idx) for name in ("start_index", "end_index", "step")
    )
    places: dict[int, tuple[int, str]] = {}
    for code, begin, end, step in zip(codes.tolist(), first.tolist(), last.tolist(), steps.tolist(), strict=True):
        if begin >= 0 and code >= 0:
            inside = wanted[(wanted >= begin) & (wanted <= end)].tolist()
            places.update({index: (step, labels[code]) for index in inside if index not in places})
    return places


def _in_time_order(instants: list[Instant]) -> tuple[Instant, ...]:
    """Return ``instants`` with times in ascending order. An instant without a time gets the time of the one before."""
    latest = min((instant.t_ns for instant in instants if instant.t_ns >= 0), default=0)
    ordered = []
    for instant in instants:
        latest = max(latest, instant.t_ns)
        ordered.append(replace(instant, t_ns=latest))
    return tuple(ordered)
