"""The trace: strict, rows that nest, the run's own numbers, and open to any name."""

from __future__ import annotations

import gzip
import io
import json
import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import load_run, make_run
from synthetic_work import COPY_STREAM, MAIN_STREAM, OPERATOR, SCOPES, load_timed
from watched_runs import watch_run

from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.step.streams import module_ranges, nested_lanes, read_streams
from gpuledger.cli.main import main
from gpuledger.errors import EmptyRunError
from gpuledger.model.imported import ImportedRank, ImportedRun, write_imported
from gpuledger.report.trace.trace import WITHOUT_TIMES, build_trace, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpuledger.model.run import Run

Event = dict[str, Any]
REQUIRED = {"X": {"name", "ph", "ts", "dur", "pid", "tid", "args"}, "C": {"name", "ph", "ts", "pid", "args"}}
INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=40)


def no_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def trace_of(run: Run) -> dict[str, Any]:
    """Return the trace of a run, read back as a strict reader does."""
    stream = io.BytesIO()
    count = write_trace(build_trace(run, run.ranks), stream, packed=False)
    document: dict[str, Any] = json.loads(stream.getvalue(), parse_constant=no_constant)
    assert len(document["traceEvents"]) == count
    return document


def rows_of(document: dict[str, Any]) -> dict[str, list[Event]]:
    """Return the slices by the name of their row, after holding every event to the format."""
    names: dict[tuple[int, int], Any] = {}
    rows = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            names[event["pid"], event["tid"]] = event["args"].get("name", names.get((event["pid"], event["tid"])))
            continue
        assert REQUIRED[event["ph"]] <= set(event)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            rows[names[event["pid"], event["tid"]]].append(event)
        else:
            assert all(isinstance(value, int | float) and math.isfinite(value) for value in event["args"].values())
    return rows


def assert_nested(events: list[Event]) -> None:
    """Hold one row to order by time, and to slices that lie in each other or apart."""
    open_until: list[float] = []
    last = 0.0
    for event in events:
        assert event["ts"] >= last
        last, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"] + 1e-6:
            open_until.pop()
        assert event["dur"] >= 0
        assert not open_until or end <= open_until[-1] + 1e-6
        open_until.append(end)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_timed(tmp_path_factory.mktemp("timed") / "run.ledger")


@pytest.fixture(scope="module")
def document(run: Run) -> dict[str, Any]:
    return trace_of(run)


def test_every_row_is_in_order_and_nests(document: dict[str, Any]) -> None:
    rows = rows_of(document)
    assert set(rows) == {
        "steps",
        "steps (2)",
        "phases",
        "energy windows",
        "recorder's pauses",
        f"cuda:0 stream {MAIN_STREAM}",
        f"cuda:0 stream {MAIN_STREAM} · modules",
        f"cuda:0 stream {COPY_STREAM}",
        f"cuda:0 stream {COPY_STREAM} · modules",
    }
    for events in rows.values():
        assert_nested(events)


def test_every_span_is_there_and_inside_its_module(run: Run, document: dict[str, Any]) -> None:
    rows = rows_of(document)
    table = run.rank().table("spans").to_pylist()
    spans = [row for row in table if row["kind"] != "phase"]
    for stream in (MAIN_STREAM, COPY_STREAM):
        name = f"cuda:0 stream {stream}"
        own = [row for row in spans if row["stream"] == stream]
        assert len(rows[name]) == len(own)
        assert sum(event["dur"] for event in rows[name]) * 1000 == pytest.approx(
            sum(row["end_ns"] - row["start_ns"] for row in own)
        )
        assert {event["args"].get("scope", "") for event in rows[name]} == {"", *SCOPES}
        ranges = rows[f"{name} · modules"]
        for event in rows[name]:
            around = [
                one
                for one in ranges
                if one["ts"] <= event["ts"] + 1e-6 and event["ts"] + event["dur"] <= one["ts"] + one["dur"] + 1e-6
            ]
            assert event["args"]["operator"] == OPERATOR
            assert {one["cat"] for one in around} >= {"step", "phase"}
            assert around[-1]["args"].get("module", "") == event["args"]["module"]


def test_counters_hold_the_peak_and_the_watts(run: Run, document: dict[str, Any]) -> None:
    summary = summarize(run.ranks[0])
    counters = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            counters[event["name"]].append(event)
    highest = max(counters["cuda:0 bytes"], key=lambda event: event["args"]["allocated"])
    assert highest["args"]["allocated"] == summary.recorded_peak_allocated_bytes
    origin_ns = int(document["otherData"]["origin_unix_ns"])
    assert highest["ts"] * 1000 + origin_ns == pytest.approx(find_peak(run.ranks[0]).t_ns, abs=1000)
    for total, parts in zip(counters["cuda:0 bytes"], counters["cuda:0 bytes by category"], strict=True):
        assert sum(parts["args"].values()) == total["args"]["allocated"]
    read = [one for one in run.rank().table("samples")["power_instant_w"].to_pylist() if one is not None]
    assert [event["args"]["value"] for event in counters["cuda:0 power, W"]] == read
    assert "cuda:0 SM clock, MHz" not in counters


def test_the_same_run_gives_the_same_bytes(run: Run) -> None:
    first, second = io.BytesIO(), io.BytesIO()
    for stream in (first, second):
        write_trace(build_trace(run, run.ranks), stream, packed=True)
    assert first.getvalue() == second.getvalue()
    assert json.loads(gzip.decompress(first.getvalue()))["otherData"]["notes"] == []


@pytest.mark.parametrize("shape", [{"host": True}, {"hostile_names": True, "modules": 40}, {"ranks": 2}])
def test_hosts_hostile_names_and_ranks(tmp_path: Path, shape: dict[str, Any]) -> None:
    run = load_timed(tmp_path / "run.ledger", blocks=300, **shape)
    document = trace_of(run)
    for events in rows_of(document).values():
        assert len({event["pid"] for event in events}) == len(run.ranks)
        for rank in range(len(run.ranks)):
            assert_nested([event for event in events if event["pid"] == rank + 1])
    text = json.dumps(document, ensure_ascii=False)
    assert not set(text) & {"\x00", "\u202e", "\u200f", "\n", "\t"}
    assert ("🔥layer" in text) == ("hostile_names" in shape)
    assert ("host thread 1 · modules" in text) == ("host" in shape)


def test_without_a_time_pass_it_says_so(tmp_path: Path) -> None:
    run = load_run(tmp_path / "run.ledger", blocks=50)
    document = trace_of(run)
    assert document["otherData"]["notes"] == [WITHOUT_TIMES]
    assert {name.removesuffix(" (2)") for name in rows_of(document)} == {"steps", "phases", "recorder's pauses"}


def test_a_watched_command_has_counters_and_its_window(tmp_path: Path) -> None:
    document = trace_of(watch_run(tmp_path / "w.ledger", [1 << 30, 3 << 30, 2 << 30], energy_j=700.0))
    (window,) = rows_of(document)["energy windows"]
    assert window["args"]["energy_j"] == 700.0
    read = [event["args"]["value"] for event in document["traceEvents"] if event["ph"] == "C"]
    assert read == [1 << 30, 3 << 30, 2 << 30]


def test_a_run_with_nothing_in_it_is_refused(tmp_path: Path) -> None:
    run = write_imported(ImportedRun("empty", "watch", (), (ImportedRank(0, {}, {}, ()),)), tmp_path / "e.ledger")
    with pytest.raises(EmptyRunError, match="nothing in it has a time"):
        build_trace(run, run.ranks)


@given(INTERVALS)
def test_lanes_keep_intervals_nested_or_apart(intervals: list[tuple[int, int]]) -> None:
    ordered = sorted(((start, start + length) for start, length in intervals), key=lambda one: (one[0], -one[1]))
    starts, ends = (np.array([one[side] for one in ordered], dtype=np.int64) for side in (0, 1))
    lanes = nested_lanes(starts, ends)
    for lane in set(lanes.tolist()):
        mine = [one for one, at in zip(ordered, lanes.tolist(), strict=True) if at == lane]
        for number, (start, end) in enumerate(mine):
            for other_start, other_end in mine[number + 1 :]:
                assert other_start >= end or other_end <= end or start == other_start


def test_ranges_last_from_the_first_to_the_last_of_their_spans(run: Run) -> None:
    (work, _) = read_streams(run.rank())
    ranges = module_ranges(work, dict.fromkeys(range(30), -1))
    steps = [one for one in ranges if one.depth == 0]
    assert [one.step for one in steps] == [7, 8]
    for one in steps:
        inside = work.step == one.step
        assert (one.start_ns, one.end_ns) == (work.start_ns[inside].min(), work.end_ns[inside].max())
    assert {one.module_id for one in ranges if one.phase == "forward"} >= set(range(25))


def test_many_spans_take_seconds_of_a_processor(tmp_path: Path) -> None:
    run = load_timed(tmp_path / "run.ledger", blocks=1000, spans=12_000)
    started = time.process_time()
    stream = io.BytesIO()
    count = write_trace(build_trace(run, run.ranks), stream, packed=True)
    assert count > 24_000
    assert time.process_time() - started < 10


def test_the_command_writes_a_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "run.ledger", blocks=50)
    monkeypatch.chdir(tmp_path)

    def ends(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["trace", "run.ledger", *words])
        return int(ended.value.code or 0)

    assert ends() == 0
    said = capsys.readouterr()
    assert said.out == "run.trace.json.gz\n"
    assert "no timing measurement" in said.err
    assert json.loads(gzip.decompress((tmp_path / "run.trace.json.gz").read_bytes()))["traceEvents"]
    assert ends() == 2
    assert "already exists" in capsys.readouterr().err
    assert ends("-o", "plain.json") == 0
    assert json.loads((tmp_path / "plain.json").read_text(encoding="utf-8"))["otherData"]["run"] == "run"
