"""Readers of what each tool wrote: traces of torch.profiler, snapshots of the allocator, runs of gpuledger."""

from __future__ import annotations

import bisect
import csv
import io
import itertools
import json
import pickle
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Label = Callable[[str], bool]


@cache
def trace_events(place: Path) -> list[Event]:
    """Return the events of a Chrome trace, in the order of time."""
    events: list[Event] = json.loads(place.read_text(encoding="utf-8"))["traceEvents"]
    return sorted((event for event in events if "ts" in event), key=lambda event: (event["ts"], -event.get("dur", 0)))


def memory_events(place: Path, device_type: int) -> list[Event]:
    """Return allocations and frees of one kind of device (0 the CPU, 1 CUDA)."""
    return [
        event
        for event in trace_events(place)
        if event["name"] == "[memory]" and event["args"]["Device Type"] == device_type
    ]


def idle_ms(place: Path, device_type: int) -> float | None:
    """Return the median ms of a step in which nothing is computed: from one call of ``take_step`` to the next."""
    events = trace_events(place)
    starts = [one["ts"] for one in events if str(one["name"]).endswith(": take_step")]
    kinds = ("kernel", "gpu_memcpy", "gpu_memset") if device_type else ("cpu_op",)
    busy = [(one["ts"], one["ts"] + one["dur"]) for one in events if one.get("cat") in kinds and "dur" in one]
    found = []
    for begin, end in itertools.pairwise(starts[1:]):
        idle, free_from = 0.0, begin
        for first, last in busy:
            idle += max(min(first, end) - free_from, 0.0)
            free_from = max(free_from, min(last, end))
        found.append(idle + end - free_from)
    return statistics.median(found) / 1e3 if found else None


def peak_of(place: Path, device_type: int) -> int | None:
    """Return the largest total of a trace."""
    return max((event["args"]["Total Allocated"] for event in memory_events(place, device_type)), default=None)


def live_by(place: Path, device_type: int, kept: Label, *, at_end: bool = False) -> list[tuple[int, str]]:
    """Return bytes and the innermost enclosing Python event that is ``kept`` of each block live at the peak or end."""
    live: dict[int, Event] = {}
    best: list[Event] = []
    total = most = 0
    for event in memory_events(place, device_type):
        told = event["args"]
        if told["Bytes"] > 0:
            live[told["Addr"]] = event
        else:
            live.pop(told["Addr"], None)
        total += told["Bytes"]
        if total > most and not at_end:
            most, best = total, list(live.values())
    spans = [one for one in trace_events(place) if one.get("cat") == "python_function" and kept(one["name"])]
    starts = [one["ts"] for one in spans]

    def enclosing(event: Event) -> str:
        for index in range(bisect.bisect_right(starts, event["ts"]) - 1, -1, -1):
            span = spans[index]
            if span["ts"] + span["dur"] >= event["ts"] and span["tid"] == event["tid"]:
                return str(span["name"])
        return "(none)"

    return [(one["args"]["Bytes"], enclosing(one)) for one in (list(live.values()) if at_end else best)]


def summed(rows: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Return the sum of each label."""
    found: dict[str, float] = defaultdict(float)
    for size, label in rows:
        found[label] += size
    return dict(found)


def kernels_within(place: Path, span: Event) -> float:
    """Return the microseconds of the kernels that are launched inside an event."""
    events = trace_events(place)
    launched = {
        one["args"]["correlation"]
        for one in events
        if one.get("cat") in ("cuda_runtime", "cuda_driver")
        and one["tid"] == span["tid"]
        and span["ts"] <= one["ts"] <= span["ts"] + span["dur"]
    }
    return sum(
        float(one["dur"]) for one in events if one.get("cat") == "kernel" and one["args"]["correlation"] in launched
    )


@cache
def snapshot_of(place: Path) -> dict[str, Any]:
    """Return a snapshot that this machine's torch wrote a moment ago."""
    found: dict[str, Any] = pickle.loads(place.read_bytes())
    return found


def frame_line(frames: Iterable[Event], file: str) -> str:
    """Return ``FILE:LINE`` of the innermost frame in a file."""
    return next((f"{file}:{one['line']}" for one in frames if one["filename"].endswith(file)), "(none)")


def snapshot_blocks(place: Path, *, at_peak: bool) -> tuple[int, list[Event]]:
    """Return the peak and the blocks at it (or at the end) that the snapshot's history has."""
    live: dict[int, Event] = {}
    best: list[Event] = []
    total = most = 0
    for event in (one for trace in snapshot_of(place)["device_traces"] for one in trace):
        if event["action"] == "alloc":
            live[event["addr"]] = event
            total += event["size"]
        elif event["action"] == "free_completed" and event["addr"] in live:
            total -= live.pop(event["addr"])["size"]
        if total > most:
            most, best = total, list(live.values())
    return most, best if at_peak else list(live.values())


@cache
def ledger(*words: str) -> str:
    """Return what a command of gpuledger prints."""
    done = subprocess.run([sys.executable, "-m", "gpuledger", *words], capture_output=True, text=True, check=False)
    return done.stdout


def shown(run: Path, *words: str) -> Event:
    """Return ``gpuledger show RUN --json``; empty where there is nothing to show."""
    text = ledger("show", str(run), "--json", *words)
    found: Event = json.loads(text) if text.startswith("{") else {}
    return found


def table_rows(run: Path, table: str) -> list[dict[str, str]]:
    """Return the rows of a table of a run."""
    return list(csv.DictReader(io.StringIO(ledger("export", str(run), "--to", "csv", "--table", table, "-o", "-"))))


def sql_value(run: Path, query: str) -> float | None:
    """Return the one value that a query of a run's tables gives; None where it is null."""
    rows = list(csv.reader(io.StringIO(ledger("sql", str(run), query, "--csv"))))
    return float(rows[1][0]) if len(rows) == 2 and rows[1][0] else None


def first_of_the_largest(events: Iterable[Event], size: Callable[[Event], float]) -> Event | None:
    """Return the earliest event within 2 % of the largest: a reused block can be up to 1 MiB larger than its tensor."""
    found = list(events)
    most = max(map(size, found), default=0.0)
    return next((one for one in found if size(one) >= 0.98 * most), None)


def most_frequent(labels: Iterable[str]) -> tuple[str, int]:
    """Return the label that occurs most often, and how often."""
    return next(iter(Counter(labels).most_common(1)), ("", 0))


def forget() -> None:
    """Drop what was read, so that outputs of one cell do not stay in memory during the next."""
    for reader in (trace_events, snapshot_of, ledger):
        reader.cache_clear()
