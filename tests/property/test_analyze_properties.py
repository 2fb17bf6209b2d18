"""What must hold for any run: sums are exact, the thinned maximum is the maximum, and brute force agrees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_runs import Life, block_rows, lives, segment_rows, to_table, written

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak, resolve_instant
from gpuledger.analyze.memory.lifetimes import distinct, running_sum
from gpuledger.analyze.memory.timeline import build_timeline, thin
from gpuledger.analyze.memory.tree import ModuleNode, module_tree
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.accounts import ROUNDING
from gpuledger.model.run import write_table
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.model.run import Rank

Rows = list[dict[str, Any]]
KEYS = ("category", "module", "phase", "tensor")
TWICE_AS_HIGH = [
    Life(512, 0, "weight", "forward", 0, 0, device=0, before=False, born=born, lasts=1, waits=None) for born in (0, 5)
]
"""Two instants with the same bytes, of which the peak is the first."""


def is_live(row: dict[str, Any], index: int, end: str = "free_requested_index") -> bool:
    return row["alloc_index"] <= index and (row[end] is None or row[end] > index)


def allocated_at(rows: Rows, device: int, index: int) -> int:
    return sum(row["allocated_bytes"] for row in rows if row["device_idx"] == device and is_live(row, index))


def indices(rows: Rows, device: int) -> range:
    mine = [row for row in rows if row["device_idx"] == device]
    marks = [row[name] for row in mine for name in ("alloc_index", "free_requested_index", "free_index")]
    known = [mark for mark in marks if mark is not None]
    return range(min(known), max(known) + 1)


def instants(rank: Rank, rows: Rows) -> Iterator[tuple[Instant, int]]:
    """Yield peak and end of every device, with the device's allocated bytes there by brute force."""
    for device in sorted({row["device_idx"] for row in rows}):
        for at in ("peak", "end"):
            instant = resolve_instant(rank, at, device)
            yield instant, allocated_at(rows, device, instant.index)


@given(lives, st.sets(st.sampled_from(KEYS), min_size=1), st.none() | st.integers(1, 3), st.integers(8, 40))
@example(TWICE_AS_HIGH, {"category"}, None, 8)
@settings(max_examples=50)
def test_memory_of_any_run(drawn: list[Life], by: set[str], depth: int | None, points: int) -> None:
    """Each run is written once and checked in all ways: writing it takes longer than most checks."""
    rows = block_rows(drawn)
    with written(rows) as rank:
        what_is_written_is_what_is_read(rank, rows)
        peak_is_what_brute_force_finds(rank, rows)
        for instant, allocated in instants(rank, rows):
            assert instant.label == "peak" or instant.index == indices(rows, instant.device_idx)[-1]
            accounts_sum_to_allocated(rank, rows, instant, allocated, by, depth)
            each_account_holds_its_own_blocks(rank, rows, instant)
            every_node_of_the_tree_sums(rank, instant, allocated)
        every_column_of_the_timeline_is_exact(rank, rows, points)


def what_is_written_is_what_is_read(rank: Rank, rows: Rows) -> None:
    assert rank.table("blocks").to_pylist() == to_table("blocks", rows).to_pylist()
    assert rank.table("segments").to_pylist() == to_table("segments", segment_rows(rows)).to_pylist()
    both = rank.table("blocks", ("category", "alloc_index"))
    assert both.to_pylist() == rank.table("blocks").select(["category", "alloc_index"]).to_pylist()


def peak_is_what_brute_force_finds(rank: Rank, rows: Rows) -> None:
    highest = {}
    for device in {row["device_idx"] for row in rows}:
        by_index = {index: allocated_at(rows, device, index) for index in indices(rows, device)}
        peak = find_peak(rank, device)
        assert by_index[peak.index] == max(by_index.values())
        assert peak.index == min(index for index, size in by_index.items() if size == by_index[peak.index])
        highest[device] = by_index[peak.index]
    assert highest[find_peak(rank).device_idx] == max(highest.values())


def accounts_sum_to_allocated(
    rank: Rank, rows: Rows, instant: Instant, allocated: int, by: set[str], depth: int | None
) -> None:
    breakdown = break_down(rank, instant, tuple(sorted(by)), depth)
    live = [row for row in rows if row["device_idx"] == instant.device_idx and is_live(row, instant.index)]
    assert breakdown.allocated_bytes == allocated
    assert sum(account.bytes for account in breakdown.accounts) == allocated
    named = [account for account in breakdown.accounts if account.category != ROUNDING]
    assert sum(account.bytes for account in named) == breakdown.requested_bytes
    assert sum(account.blocks for account in named) == len(live)
    assert len({(a.category, a.module, a.phase, a.name) for a in breakdown.accounts}) == len(breakdown.accounts)
    assert [a.bytes for a in breakdown.accounts] == sorted((a.bytes for a in breakdown.accounts), reverse=True)
    assert allocated <= breakdown.active_bytes <= breakdown.reserved_bytes or instant.device_idx < 0


def each_account_holds_its_own_blocks(rank: Rank, rows: Rows, instant: Instant) -> None:
    expected: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["device_idx"] == instant.device_idx and is_live(row, instant.index):
            key = (row["category"], row["phase"])
            expected[key] = expected.get(key, 0) + row["requested_bytes"]
    breakdown = break_down(rank, instant, ("category", "phase"))
    found = {(a.category, a.phase): a.bytes for a in breakdown.accounts if a.category != ROUNDING}
    assert found == expected


def walk(node: ModuleNode) -> Iterator[ModuleNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def every_node_of_the_tree_sums(rank: Rank, instant: Instant, allocated: int) -> None:
    root = module_tree(rank, instant)
    assert root.total_bytes == allocated
    for node in walk(root):
        assert node.total_bytes == node.self_bytes + sum(child.total_bytes for child in node.children)
        assert node.self_bytes == sum(node.by_category.values())
    flat = {a.module: a.bytes for a in break_down(rank, instant, ("module",)).accounts if a.module}
    own = {node.path: node.self_bytes for node in walk(root) if node.path in flat}
    assert own == flat


def every_column_of_the_timeline_is_exact(rank: Rank, rows: Rows, points: int) -> None:
    for device in {row["device_idx"] for row in rows}:
        timeline = build_timeline(rank, device, points)
        total = timeline.bytes.sum(axis=0)
        assert timeline.index.size <= max(points, 1)
        assert [allocated_at(rows, device, index) for index in timeline.index.tolist()] == total.tolist()
        assert total.max() == max(allocated_at(rows, device, index) for index in indices(rows, device))
        assert (np.diff(timeline.index) > 0).all()
        assert (np.diff(timeline.t_ns) >= 0).all()
        assert (timeline.reserved_bytes >= total).all()
        assert timeline.categories[-1] == ROUNDING


@given(lives, st.none() | st.integers(0, 1 << 47), st.booleans())
@settings(max_examples=40)
def test_balance_sums_to_used_and_to_allocated(drawn: list[Life], used: int | None, measured: bool) -> None:
    rows = block_rows(drawn)
    libraries = {"libraries": {"context_bytes": 600 << 20, "library_bytes": 1 << 20, "source": "here"}}
    with written(rows, **(libraries if measured else {})) as rank:
        devices = {row["device_idx"] for row in rows}
        if used is not None:
            add_readings(rank, devices, used)
        for device in devices:
            balance = build_balance(rank, device)
            level = {n: sum(line.bytes or 0 for line in balance.lines if line.level == n) for n in (1, 2)}
            allocated = next(line.bytes for line in balance.lines if line.name == "allocated")
            assert level[2] == allocated == allocated_at(rows, device, balance.instant.index)
            if used is not None and device >= 0:
                assert level[1] == balance.used_bytes
                assert balance.unaccounted_bytes is not None
            else:
                assert (balance.used_bytes, balance.unaccounted_bytes) == (None, None)
                assert balance.notes
            torch = ("free_segments", "fragmented", "awaiting_free", "allocated")
            breakdown = break_down(rank, balance.instant)
            assert sum(line.bytes or 0 for line in balance.lines if line.name in torch) == breakdown.reserved_bytes


def add_readings(rank: Rank, devices: set[int], used: int) -> None:
    """Write one reading of each GPU, placed after the last event."""
    counters = dict.fromkeys(TABLES["counters"].column_names, 0) | {
        "t_ns": 9_000,
        "reason": "close",
        "event_index": 999,
    }
    sample = {"t_ns": 9_000, "used_bytes": used, "driver_bytes": 5, "total_bytes": 1 << 45}
    for name, row in (("counters", counters), ("samples", sample)):
        write_table(rank.directory, to_table(name, [row | {"device_idx": device} for device in devices]), name)


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=400), st.integers(8, 60), st.randoms())
def test_thinning_keeps_first_highest_lowest_and_last(values: list[int], points: int, random: Any) -> None:
    times = sorted(random.choices(range(50), k=len(values)))
    kept = thin(np.array(values), np.array(times), points)
    assert kept.size <= max(points, 0)
    shown = [values[place] for place in kept.tolist()]
    assert (shown[0], max(shown), min(shown), shown[-1]) == (values[0], max(values), min(values), values[-1])


@given(st.lists(st.integers(-1, 40) | st.integers(1 << 30, (1 << 30) + 5), max_size=40))
def test_distinct_is_unique_with_places(marks: list[int]) -> None:
    points, place = distinct(np.array(marks, dtype=np.int64))
    assert points.tolist() == sorted(set(marks))
    assert points[place].tolist() == marks


@given(st.lists(st.tuples(st.integers(0, 1 << 50), st.integers(-1, 30), st.none() | st.integers(0, 30)), max_size=30))
def test_running_sum_is_the_sum_of_what_is_live(drawn: list[tuple[int, int, int | None]]) -> None:
    sizes, start = (np.array([row[place] for row in drawn], dtype=np.int64) for place in (0, 1))
    end = np.array([NEVER if stop is None else max(begin, stop) for _, begin, stop in drawn], dtype=np.int64)
    curve = running_sum(sizes, start, end)
    for index in range(-2, 32):
        assert curve.at(index) == int(sizes[(start <= index) & (end > index)].sum())
