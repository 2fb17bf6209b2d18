from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import synthetic
from random_runs import to_table
from synthetic import load_run, make_run
from synthetic_lives import STEP_NS

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.analyze.overview import balance as balances
from gpuledger.analyze.overview.balance import (
    Balance,
    BalanceLine,
    CardAtInstant,
    _category_lines,
    _free_segment_bytes,
    _nearest,
    _outside_lines,
    _placed_readings,
    _torch_lines,
    _unaccounted,
    build_balance,
)
from gpuledger.analyze.overview.process_bytes import CONTEXT, LATER, LIBRARY, NCCL, Gain, OutsideBytes
from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.step.steps import step_times
from gpuledger.errors import EmptyRunError
from gpuledger.model.accounts import CATEGORIES, ROUNDING
from gpuledger.model.run import read_run, write_table
from gpuledger.model.run_directory import write_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpuledger.model.run import Rank

Rows = list[dict[str, Any]]


def lines(balance: Balance) -> dict[str, int | None]:
    return {line.name: line.bytes for line in balance.lines}


def changed(path: Path, table: str, change: Callable[[Rows], Rows]) -> Rank:
    """Return the rank of a fresh run with one table's rows changed."""
    rank = load_run(path).rank()
    write_table(rank.directory, to_table(table, change(rank.table(table).to_pylist())), table)
    return read_run(path).rank()


def with_manifest(path: Path, **facts: Any) -> Rank:
    make_run(path)
    place = path / "rank-0" / "manifest.json"
    manifest = {key: value for key, value in (json.loads(place.read_text()) | facts).items() if value is not None}
    write_json(place, manifest)
    return read_run(path).rank()


@pytest.mark.parametrize("at", ["peak", "end", "400ms"])
def test_the_remainder_is_the_one_put_in(tmp_path: Path, at: str) -> None:
    rank = load_run(tmp_path / "one.ledger").rank()
    balance = build_balance(rank, at=at)
    found = lines(balance)
    assert balance.unaccounted_bytes == found["unaccounted"] == synthetic.UNACCOUNTED_BYTES
    assert (found["context"], found["library"]) == (synthetic.CONTEXT_BYTES, synthetic.LIBRARY_BYTES)
    assert found["other_processes"] == synthetic.OTHER_PROCESS_BYTES
    assert found["driver"] == synthetic.DRIVER_BYTES
    assert balance.total_bytes == synthetic.TOTAL_BYTES
    assert sum(line.bytes or 0 for line in balance.lines if line.level == 0) == synthetic.TOTAL_BYTES
    assert sum(line.bytes or 0 for line in balance.lines if line.level == 1) == balance.used_bytes
    breakdown = break_down(rank, balance.instant)
    assert balance.process_bytes == breakdown.reserved_bytes + synthetic.CONTEXT_BYTES + synthetic.LIBRARY_BYTES
    assert [(line.level, line.source, line.name) for line in balance.lines if line.level < 2] == [
        *((0, "NVML memory info v2", name) for name in ("driver", "unused", "used")),
        (1, "NVML process list", "other_processes"),
        (1, "measured separately", "context"),
        (1, "NVML process list minus reserved memory", "library"),
        *(
            (1, "caching allocator's history", name)
            for name in ("free_segments", "fragmented", "awaiting_free", "allocated")
        ),
        (1, "used minus all other lines", "unaccounted"),
    ]
    named = (*(line.name for line in balance.lines if line.level == 0), "other_processes", "context", "allocated")
    assert {line.note for line in balance.lines if line.name in named} == {""}
    assert {line.name for line in balance.lines if line.level == 2} <= {*CATEGORIES, ROUNDING}


def test_segments_taken_between_instant_and_reading_are_said(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "one.ledger").rank()
    early = build_balance(rank, at="300ms")
    assert early.unaccounted_bytes == synthetic.UNACCOUNTED_BYTES
    later = "The GPU was sampled at event 2042, when segments were 2.7 GiB larger. The balance is corrected for that."
    assert early.notes == (later, "CUDA context and libraries: measured apart.")
    rank = changed(tmp_path / "two.ledger", "samples", lambda rows: rows[:1])
    late = build_balance(rank, at="end")
    earlier = "The GPU was sampled at event -1, when segments were 9.1 GiB smaller. The balance is corrected for that."
    assert (late.notes[0], late.unaccounted_bytes) == (earlier, synthetic.UNACCOUNTED_BYTES)
    at_end = build_balance(read_run(tmp_path / "one.ledger").rank(), at="end")
    assert at_end.notes == ("CUDA context and libraries: measured apart.",)


def test_what_is_unused_is_known_with_the_drivers_memory_only(tmp_path: Path) -> None:
    rank = changed(tmp_path / "one.ledger", "samples", lambda rows: [row | {"driver_bytes": -1} for row in rows])
    found = lines(build_balance(rank))
    assert (found["driver"], found["unused"]) == (None, None)
    assert found["used"] is not None
    none = changed(tmp_path / "two.ledger", "samples", lambda rows: [row | {"driver_bytes": 0} for row in rows])
    assert lines(build_balance(none))["driver"] == 0
    assert lines(build_balance(none))["unused"] == synthetic.TOTAL_BYTES - (found["used"] or 0)


def test_a_gpu_whose_name_was_not_recorded_has_none(tmp_path: Path) -> None:
    assert build_balance(with_manifest(tmp_path / "one.ledger", devices=[])).device_name == ""


def test_awaiting_and_free_segments_are_told_apart(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "one.ledger", blocks=20_000).rank()
    end = build_balance(rank, at="end")
    breakdown = break_down(rank, end.instant)
    found = lines(end)
    assert found["free_segments"]
    assert found["fragmented"]
    free = (found["free_segments"] or 0) + (found["fragmented"] or 0)
    assert breakdown.reserved_bytes == free + breakdown.active_bytes
    waiting = [
        row["free_requested_index"]
        for row in rank.table("blocks").to_pylist()
        if row["free_requested_index"] is not None and row["free_index"] > row["free_requested_index"] + 5
    ]
    assert waiting


def test_without_a_separate_measurement_the_process_says_what_is_outside_the_allocator(tmp_path: Path) -> None:
    balance = build_balance(with_manifest(tmp_path / "one.ledger", libraries=None))
    apart = {line.name: line for line in balance.lines}
    assert "context" not in apart
    assert apart["library"].bytes == synthetic.CONTEXT_BYTES + synthetic.LIBRARY_BYTES
    assert apart["library"].note == "682.0 MiB in step 1, with the CUDA context"
    assert balance.unaccounted_bytes == synthetic.UNACCOUNTED_BYTES


def test_without_libraries_and_processes_the_unaccounted_memory_includes_them(tmp_path: Path) -> None:
    rank = changed(tmp_path / "one.ledger", "process_samples", lambda rows: [])
    place = rank.directory / "manifest.json"
    write_json(place, {key: value for key, value in json.loads(place.read_text()).items() if key != "libraries"})
    balance = build_balance(read_run(tmp_path / "one.ledger").rank())
    apart = {line.name: line for line in balance.lines}
    assert (apart["context"].bytes, apart["library"].bytes) == (None, None)
    assert (apart["context"].level, apart["library"].level) == (1, 1)
    assert "not measured" in apart["context"].note
    assert "context, library" in apart["unaccounted"].note
    outside = synthetic.CONTEXT_BYTES + synthetic.LIBRARY_BYTES + synthetic.OTHER_PROCESS_BYTES
    assert balance.unaccounted_bytes == synthetic.UNACCOUNTED_BYTES + outside


def test_without_a_reading_nothing_of_the_card_is_claimed(tmp_path: Path) -> None:
    balance = build_balance(changed(tmp_path / "one.ledger", "samples", lambda rows: []))
    assert (balance.used_bytes, balance.unaccounted_bytes, balance.process_bytes) == (None, None, None)
    assert lines(balance)["used"] is None
    assert "not sampled" in balance.notes[0]
    assert {line.name: line.note for line in balance.lines if line.level == 0} == {
        "driver": "not sampled",
        "unused": "not sampled",
        "used": "the GPU was not sampled",
    }
    unaccounted = [line for line in balance.lines if line.name == "unaccounted"]
    assert [(line.level, line.note) for line in unaccounted] == [(1, "the GPU was not sampled")]
    assert balance.total_bytes == synthetic.TOTAL_BYTES


def test_a_hosts_process_id_is_taken_only_when_it_is_alone(tmp_path: Path) -> None:
    def only_host_pid(rows: Rows) -> Rows:
        return [row | {"pid": 777} for row in rows if row["pid"] == synthetic.PID]

    def host_pids(rows: Rows) -> Rows:
        return [row | {"pid": row["pid"] + 70_000} for row in rows]

    alone = build_balance(changed(tmp_path / "one.ledger", "process_samples", only_host_pid))
    assert alone.process_bytes is not None
    assert any("777" in note for note in alone.notes)
    unclear = build_balance(changed(tmp_path / "two.ledger", "process_samples", host_pids))
    assert (unclear.process_bytes, lines(unclear)["other_processes"]) == (None, None)
    assert all(line.note for line in unclear.lines if line.bytes is None)
    assert unclear.unaccounted_bytes == synthetic.UNACCOUNTED_BYTES + synthetic.OTHER_PROCESS_BYTES
    assert any("does not include this process" in note for note in unclear.notes)
    hidden = build_balance(changed(tmp_path / "six.ledger", "process_samples", lambda rows: []))
    assert hidden.process_bytes is None


def test_cpu_tensors_balance_without_a_card(tmp_path: Path) -> None:
    balance = build_balance(load_run(tmp_path / "cpu.ledger", cuda=False).rank())
    assert (balance.device_name, balance.used_bytes, balance.unaccounted_bytes) == ("CPU", None, None)
    assert "no GPU" in balance.notes[0]
    assert not any("caching allocator" in line.source or "empty_cache" in line.note for line in balance.lines)
    assert lines(balance)["allocated"] == sum(line.bytes or 0 for line in balance.lines if line.level == 2)


def test_step_time_prefers_unrecorded_steps_and_takes_pauses_off(tmp_path: Path) -> None:
    times = step_times(load_run(tmp_path / "one.ledger").rank())
    assert (times.count, times.median_ns, times.p95_ns) == (
        5,
        STEP_NS + 1_000_000,
        STEP_NS + 2_000_000,
    )
    assert "5 unprofiled steps" in times.source
    recorded = step_times(changed(tmp_path / "two.ledger", "steps", lambda rows: rows[:3]))
    assert (recorded.count, recorded.median_ns, recorded.p95_ns) == (2, STEP_NS + 1_000_000 - synthetic.PAUSE_NS, None)
    assert "2 recorded steps" in recorded.source
    first = step_times(changed(tmp_path / "three.ledger", "steps", lambda rows: rows[:1]))
    assert (first.count, first.median_ns) == (1, STEP_NS + 1_000_000 - synthetic.PAUSE_NS)
    none = step_times(changed(tmp_path / "four.ledger", "steps", lambda rows: []))
    assert (none.count, none.median_ns, none.p95_ns) == (0, None, None)


@pytest.mark.parametrize(("slower_ns", "kind"), [(-5_000_000, "profiled"), (9_000_000, "recorded")])
def test_without_unprofiled_steps_the_faster_of_recorded_and_profiled_ones_are_closer(
    slower_ns: int, kind: str, tmp_path: Path
) -> None:
    """Both are slower than a step of the program. Which of them is slower depends on the program."""
    rank = with_manifest(tmp_path / "six.ledger", time_steps=[4, 6])
    rows = [row for row in rank.table("steps").to_pylist() if row["step"] <= 6]
    recorded_ns = [row["end_ns"] - row["start_ns"] - row["paused_ns"] for row in rows[1:3]]
    for row in rows[3:]:
        row["end_ns"] = row["start_ns"] + row["paused_ns"] + recorded_ns[0] + slower_ns
    write_table(rank.directory, to_table("steps", rows), "steps")
    times = step_times(read_run(tmp_path / "six.ledger").rank())
    expected_ns = recorded_ns[0] + slower_ns if kind == "profiled" else round(sum(recorded_ns) / 2)
    assert (times.count, times.median_ns) == (3 if kind == "profiled" else 2, expected_ns)
    assert times.source.endswith(f"{kind} steps")


def test_the_step_time_is_of_the_kind_of_steps_with_measured_times(tmp_path: Path) -> None:
    """As of the batches of which features are computed before a training."""
    rank = with_manifest(tmp_path / "seven.ledger", time_steps=[4, 6])
    rows = rank.table("steps").to_pylist()
    for row in rows[:7]:
        row["kind"] = "call"
    rows[7]["end_ns"] += 500_000_000
    write_table(rank.directory, to_table("steps", rows), "steps")
    times = step_times(read_run(tmp_path / "seven.ledger").rank())
    assert (times.count, times.median_ns) == (1, rows[6]["end_ns"] - rows[6]["start_ns"])
    untimed = with_manifest(tmp_path / "eight.ledger")
    write_table(untimed.directory, to_table("steps", rows), "steps")
    assert step_times(read_run(tmp_path / "eight.ledger").rank()).median_ns == rows[7]["end_ns"] - rows[7]["start_ns"]


@pytest.mark.parametrize(
    ("kinds", "used"),
    [
        (["call", "call", "replay", "replay", "replay"], [6, 7, 8]),
        (["call", "call", "call", "call", "replay"], [8]),
        (["call", "replay", "replay", "replay", "call"], [5, 6, 7]),
        (["call", "replay", "call", "call", "call"], [6, 7, 8]),
        (["replay", "replay", "optimizer", "optimizer", "optimizer"], [6, 7, 8]),
    ],
)
def test_the_step_time_is_of_replays_and_not_of_the_calls_that_prepare_them(
    kinds: list[str], used: list[int], tmp_path: Path
) -> None:
    """Calls after the first replay are the work if they are more, as of batches that no graph fits."""
    rank = load_run(tmp_path / "one.ledger").rank()
    rows = rank.table("steps").to_pylist()
    for row, kind in zip(rows[3:], kinds, strict=True):
        row["kind"] = kind
        row["end_ns"] += row["step"] * 10_000_000
    write_table(rank.directory, to_table("steps", rows), "steps")
    times = step_times(read_run(tmp_path / "one.ledger").rank())
    own_ns = [row["end_ns"] - row["start_ns"] - row["paused_ns"] for row in rows if row["step"] in used]
    assert (times.count, times.median_ns) == (len(used), round(np.median(own_ns)))


def test_the_step_time_is_not_of_a_training_before_the_recorded_steps(tmp_path: Path) -> None:
    """With --steps, another training can come first. Its steps count only if none follow the recorded ones."""

    def recorded_late(rows: Rows) -> Rows:
        for row in rows:
            row["recorded"] = row["step"] in (6, 7)
            row["end_ns"] += 700_000_000 if row["step"] < 6 else 0
        return rows

    def without_last(rows: Rows) -> Rows:
        return recorded_late(rows)[:7]

    rank = changed(tmp_path / "after.ledger", "steps", recorded_late)
    last = rank.table("steps").to_pylist()[7]
    times = step_times(rank)
    assert (times.count, times.median_ns) == (1, last["end_ns"] - last["start_ns"] - last["paused_ns"])
    before = step_times(changed(tmp_path / "before.ledger", "steps", without_last))
    assert before.count == 4
    assert before.median_ns is not None
    assert before.median_ns > 700_000_000


def test_a_step_on_two_devices_counts_once(tmp_path: Path) -> None:
    rank = changed(tmp_path / "one.ledger", "steps", lambda rows: rows + [row | {"device_idx": 1} for row in rows])
    assert step_times(rank).count == 5


def test_summary_holds_the_counters_figures(tmp_path: Path) -> None:
    rank = load_run(tmp_path / "one.ledger").rank()
    found = summarize(rank)
    counters = rank.table("counters").to_pylist()
    assert found.peak_allocated_bytes == max(row["peak_allocated_bytes"] for row in counters)
    assert found.peak_reserved_bytes == max(row["peak_reserved_bytes"] for row in counters)
    assert (found.device_name, found.capacity_bytes) == ("NVIDIA H200", synthetic.TOTAL_BYTES)
    assert found.recorded_peak_allocated_bytes == found.peak_allocated_bytes
    assert found.recorded_peak_reserved_bytes == found.peak_reserved_bytes
    assert found.notes == ()


def test_a_higher_peak_outside_the_window_is_told(tmp_path: Path) -> None:
    def higher(rows: Rows) -> Rows:
        return [row | {"peak_allocated_bytes": 90 << 30} if row["reason"] == "exit" else row for row in rows]

    found = summarize(changed(tmp_path / "one.ledger", "counters", higher))
    assert found.peak_allocated_bytes == 90 << 30 > found.recorded_peak_allocated_bytes
    assert "90.0 GiB" in found.outside_notes[0]
    more_bytes = (90 << 30) - found.recorded_peak_allocated_bytes
    assert found.outside_peaks == {"allocated": (90 << 30, more_bytes)}


def test_damage_and_notes_reach_the_summary(tmp_path: Path) -> None:
    rank = with_manifest(tmp_path / "one.ledger", notes=["a", "a", "b"], damaged=["00003.npz: cut"], devices=[])
    found = summarize(rank)
    assert found.notes == ("a", "b", "A part of the recording is damaged: 00003.npz: cut")
    assert found.device_name == "cuda:0"


def test_cpu_summary_and_empty_run(tmp_path: Path) -> None:
    found = summarize(load_run(tmp_path / "cpu.ledger", cuda=False).rank())
    assert (found.device_idx, found.device_name) == (-1, "CPU")
    assert found.peak_reserved_bytes == found.peak_allocated_bytes
    empty = load_run(tmp_path / "none.ledger", blocks=0).rank()
    for ask in (summarize, build_balance):
        with pytest.raises(EmptyRunError):
            ask(empty)


@pytest.mark.parametrize(
    ("samples", "wanted", "best"),
    [
        ([5, 15], 20, 15),  # the nearest of those before
        ([25, 30], 20, 25),  # and of those after
        ([9, 20], 10, 20),  # after rather than before, though farther
        ([10, 15], 10, 10),  # the sample of the instant itself is not before it
        ([18, 25], 21, 18),  # rather before than on the other side of a change of segments
        ([99, 101], 100, 101),  # the segment of event 100 is there at event 100
        ([25, 40], 41, 40),
        ([25, 45], 30, 25),
        ([22, 60], 25, 22),
        ([45, 110], 50, 45),  # the segment of event 22 is released at 41, that of event 100 is still to come
    ],
)
def test_the_sample_with_the_same_segments_is_taken_then_a_later_one_then_the_nearest(
    samples: list[int], wanted: int, best: int, tmp_path: Path
) -> None:
    def held_at(rows: Rows) -> Rows:
        return [{**rows[0], "alloc_index": 22, "free_index": 41}, {**rows[0], "alloc_index": 100, "free_index": None}]

    rank = changed(tmp_path / "one.ledger", "segments", held_at)
    place = _nearest(rank, 0, np.array(samples), wanted)
    assert samples[place] == best


def test_a_segment_is_there_from_its_event_until_the_one_that_releases_it(tmp_path: Path) -> None:
    def one_far_away(rows: Rows) -> Rows:
        return [{**rows[0], "address": 1 << 50, "bytes": 7 << 20, "alloc_index": 50, "free_index": 60}]

    rank = changed(tmp_path / "one.ledger", "segments", one_far_away)
    instant = resolve_instant(rank, "end", 0, None)
    free = {index: _free_segment_bytes(rank, replace(instant, index=index)) for index in (49, 50, 59, 60)}
    assert free == {49: 0, 50: 7 << 20, 59: 7 << 20, 60: 0}


@pytest.mark.parametrize(("collectives", "said"), [("nccl", True), ("gloo", False)])
def test_nccls_buffers_are_unaccounted_where_the_process_was_not_read(
    collectives: str, said: bool, tmp_path: Path
) -> None:
    rank = with_manifest(tmp_path / "one.ledger", collectives=collectives)
    write_table(rank.directory, to_table("process_samples", []), "process_samples")
    (unread,) = [line.note for line in build_balance(rank).lines if line.name == "unaccounted"]
    assert unread == "includes unmeasured parts: other processes" + "; includes NCCL's buffers" * said
    read = with_manifest(tmp_path / "two.ledger", collectives=collectives, libraries=None)
    assert [line.note for line in build_balance(read).lines if line.name == "unaccounted"] == [
        "not explained by any line"
    ]


def test_a_sample_counts_if_its_used_bytes_and_its_place_are_known(tmp_path: Path) -> None:
    """Also where nothing is used; the run's last counters have no place among the events."""

    def used(rows: Rows) -> Rows:
        return [row | {"used_bytes": number - 1} for number, row in enumerate(rows)]

    rank = changed(tmp_path / "one.ledger", "samples", used)
    times, places, found = _placed_readings(rank, 0)
    rows = rank.table("counters").to_pylist()
    placed = {row["t_ns"]: row["event_index"] for row in rows if row["event_index"] is not None}
    assert found.tolist() == [0, 1, 2, 3]
    assert places.tolist() == [placed[time] for time in times.tolist()]


def test_a_segment_is_free_without_an_active_block_unless_a_graph_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block may be in no segment, below all of them."""
    rank = load_run(tmp_path / "whole.ledger").rank()
    instant = resolve_instant(rank, "end", 0, None)
    alive = sorted(row["address"] for row in rank.table("blocks").to_pylist() if row["free_index"] is None)
    places = {(1 << 60) + 64: 16, alive[1]: 1, alive[1] + 1: 2, alive[-1] + 1: 4, 1 << 60: 8}

    def placed(rows: Rows) -> Rows:
        found = [{**rows[0], "address": place, "bytes": size} for place, size in places.items()]
        return [{**row, "alloc_index": -1, "free_index": None} for row in found]

    rank = changed(tmp_path / "one.ledger", "segments", placed)
    assert _free_segment_bytes(rank, instant) == 4 + 8 + 16
    kept = {8: 8, 16: 15}
    sizes = np.array([kept.get(size, 0) for size in places.values()])
    monkeypatch.setattr(balances, "kept_free_bytes", lambda *_: sizes)
    assert _free_segment_bytes(rank, instant) == 4 + 16


FIRST = "before the first module call"
IN_STEP = "1.0 MiB in step 2"
COLLECTIVE = "during the first collective of a process group: "
MAY_INCLUDE = ", may include NCCL's buffers"
READ, APART = balances.NVML_IN_PROCESS, balances.MEASURED


@pytest.mark.parametrize(
    ("gains", "sizes", "collectives", "expected"),
    [
        ([CONTEXT], (5, 7, None), "gloo", [("context", 5, READ, FIRST), ("library", 7, READ, IN_STEP)]),
        ([CONTEXT], (5, 7, None), "nccl", [("context", 5, READ, FIRST + MAY_INCLUDE), ("library", 7, READ, IN_STEP)]),
        ([], (5, 7, None), "nccl", [("context", 5, APART, ""), ("library", 7, READ, IN_STEP + MAY_INCLUDE)]),
        ([], (None, 7, None), "gloo", [("library", 7, READ, f"{IN_STEP}, with the CUDA context")]),
        (
            [CONTEXT],
            (0, 0, 0),
            "nccl",
            [("context", 0, READ, FIRST), ("library", 0, READ, IN_STEP), ("nccl", 0, READ, f"{COLLECTIVE}nothing")],
        ),
        (
            [NCCL],
            (5, 7, 9),
            "nccl",
            [("context", 5, APART, ""), ("library", 7, READ, IN_STEP), ("nccl", 9, READ, COLLECTIVE + IN_STEP)],
        ),
    ],
)
def test_lines_outside_the_allocator_say_when_they_came_and_what_they_may_include(
    gains: list[str],
    sizes: tuple[int | None, int, int | None],
    collectives: str,
    expected: list[tuple[str, int, str, str]],
) -> None:
    rank: Any = SimpleNamespace(manifest=SimpleNamespace(collectives=collectives))
    found = tuple(Gain(name, 2, 1 << 20) for name in [*gains, LIBRARY])
    outside = OutsideBytes(*sizes, found, FIRST if CONTEXT in gains else "")
    assert _outside_lines(rank, outside) == [BalanceLine(name, size, 1, *rest) for name, size, *rest in expected]


@pytest.mark.parametrize(
    ("missing", "is_read", "collectives", "gain", "note"),
    [
        ((), False, None, LATER, "not explained by any line"),
        ((), False, "nccl", LATER, "not explained by any line; includes NCCL's buffers"),
        ((), True, "nccl", LIBRARY, "not explained by any line"),
        ((), True, None, LATER, f"not explained by any line; outside PyTorch's allocator came {IN_STEP}"),
        (
            ("other_processes", "context"),
            True,
            "nccl",
            LATER,
            f"includes unmeasured parts: other processes, context; outside PyTorch's allocator came {IN_STEP}",
        ),
    ],
)
def test_the_remainder_says_what_it_includes(
    missing: tuple[str, ...], is_read: bool, collectives: str | None, gain: str, note: str
) -> None:
    outside = OutsideBytes(None, 0, None, (Gain(gain, 2, 1 << 20),)) if is_read else None
    known = [BalanceLine("library", 30, 1, READ, ""), *(BalanceLine(name, None, 1, READ, "") for name in missing)]
    found = _unaccounted(CardAtInstant(used_bytes=100, outside=outside), known, collectives)
    assert found == BalanceLine("unaccounted", 70, 1, "used minus all other lines", note)


@pytest.mark.parametrize(("device_idx", "source"), [(0, balances.HISTORY), (-1, balances.DISPATCH)])
def test_categories_are_in_their_order_then_others_by_name_then_rounding(device_idx: int, source: str) -> None:
    names = [ROUNDING, "of a plug-in", "weight", "another", "activation"]
    accounts = [SimpleNamespace(category=name, bytes=number) for number, name in enumerate(names)]
    breakdown: Any = SimpleNamespace(accounts=accounts, instant=SimpleNamespace(device_idx=device_idx))
    order = [names.index(name) for name in ("weight", "activation", "another", "of a plug-in", ROUNDING)]
    assert _category_lines(breakdown) == [BalanceLine(names[one], one, 2, source, "") for one in order]


ALL = [("free_segments", 20), ("graph_pools", 7), ("fragmented", 13), ("awaiting_free", 10), ("allocated", 50)]
NOT_IN_FILE = [("free_segments", None), ("fragmented", None), ("awaiting_free", None), ("allocated", 50)]
STATED = [("free_segments", None), ("fragmented", 13), ("awaiting_free", None), ("allocated", 50)]


@pytest.mark.parametrize(
    ("pools", "device_idx", "of_graphs", "expected", "source"),
    [
        (None, 0, 7, ALL, balances.HISTORY),
        (
            None,
            0,
            0,
            [one if one[0] != "fragmented" else ("fragmented", 20) for one in ALL if one[1] != 7],
            balances.HISTORY,
        ),
        (None, -1, 7, ALL[-1:], balances.DISPATCH),
        ([], 0, 7, NOT_IN_FILE, balances.FILE),
        ([balances.STATED_POOL], 0, 7, STATED, balances.FILE),
        ([balances.STATED_POOL, "large"], 0, 7, ALL, balances.HISTORY),
    ],
)
def test_reserved_memory_is_divided_as_far_as_the_recording_has_it(
    pools: list[str] | None,
    device_idx: int,
    of_graphs: int,
    expected: list[tuple[str, int | None]],
    source: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 bytes, 60 are active and 50 of these allocated; 20 are in segments without an active block."""
    monkeypatch.setattr(
        balances, "kept_free_bytes", lambda *_: np.array([of_graphs - 2, 2]) if of_graphs else np.array([0])
    )
    monkeypatch.setattr(balances, "_free_segment_bytes", lambda *_: 20)
    rank: Any = SimpleNamespace(
        manifest=SimpleNamespace(recorder=SimpleNamespace(is_imported=pools is not None)),
        table=lambda *_: pa.table({"pool": pa.array(pools or [], pa.string())}),
    )
    instant = SimpleNamespace(device_idx=device_idx, index=0)
    breakdown: Any = SimpleNamespace(instant=instant, active_bytes=60, allocated_bytes=50, reserved_bytes=100)
    found = _torch_lines(rank, breakdown)
    assert [(line.name, line.bytes) for line in found] == expected
    assert {(line.level, line.source) for line in found} == {(1, source)}
    assert source in ("caching allocator's history", "operators at the dispatcher", "the imported file")
    unknown = {line.note for line in found if line.bytes is None}
    assert unknown <= {"not in the file"}
    assert all(line.note for line in found if line.name != "allocated")
