"""A run as a trace for Perfetto and chrome://tracing: what ran when, and for which module, beside bytes and watts.

Strict Trace Event JSON, one event a line: UTF-8 (Perfetto shows escapes as they are) and no NaN. Every slice is a
complete event (``X``) on a row where slices nest or are apart; bytes and watts are counters (``C``). Times are
microseconds, to the nanosecond, since the first moment of the run, which ``otherData.origin_unix_ns`` names.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from gpuledger._version import __version__
from gpuledger.analyze.ranks.rank_notes import label_notes
from gpuledger.errors import EmptyRunError
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.report.trace.counters import Counter, read_counters
from gpuledger.report.trace.names import shown
from gpuledger.report.trace.tracks import MODULES, Track, read_tracks

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

WITHOUT_TIMES = (
    "no kernels and modules: the run has no timing measurement; record one with gpuledger run --passes memory,time"
)
_LINES_AT_ONCE = 2000
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class TraceProcess:
    """One rank: its name, its rows of slices and its counters."""

    rank: int
    name: str
    tracks: list[Track]
    counters: list[Counter]


@dataclass(frozen=True)
class TraceFile:
    """What a trace file holds; ``notes`` is what its reader should know."""

    run: str
    origin_ns: int
    processes: tuple[TraceProcess, ...]
    notes: tuple[str, ...]


def build_trace(run: Run, ranks: tuple[Rank, ...]) -> TraceFile:
    """Return the trace of some ranks of a run, on one clock.

    Raises:
        EmptyRunError: nothing in the run has a time.
    """
    if not run.has_measured_times:
        hint = "Show memory by event with: gpuledger report RUN"
        raise EmptyRunError(f"{run.path.name}: nothing in it has a time, because its GPU is simulated", hint=hint)
    processes = tuple(TraceProcess(rank.number, _name(rank), read_tracks(rank), read_counters(rank)) for rank in ranks)
    starts = [track.slices[0].start_ns for one in processes for track in one.tracks]
    starts += [int(counter.t_ns[0]) for one in processes for counter in one.counters]
    if not starts:
        raise EmptyRunError(f"{run.path.name}: nothing in it has a time", hint="gpuledger run train.py records one")
    of_ranks = [(rank.number, shown(note)) for rank in ranks for note in rank.manifest.notes]
    notes = [*label_notes(of_ranks, [rank.number for rank in ranks])]
    if not any(MODULES in track.name for one in processes for track in one.tracks):
        notes.append(WITHOUT_TIMES)
    return TraceFile(shown(run.name), min(starts), processes, tuple(dict.fromkeys(notes)))


def write_trace(trace: TraceFile, stream: IO[bytes], *, packed: bool) -> int:
    """Write a trace, in gzip where ``packed``; the same trace gives the same bytes.

    Returns:
        The number of events.
    """
    if not packed:
        return _write(trace, stream)
    with gzip.GzipFile(filename="", fileobj=stream, mode="wb", compresslevel=5, mtime=0) as file:
        return _write(trace, file)


def _write(trace: TraceFile, stream: IO[bytes] | gzip.GzipFile) -> int:
    about = {
        "gpuledger_version": __version__,
        "schema_version": SCHEMA_VERSION,
        "run": trace.run,
        "origin_unix_ns": str(trace.origin_ns),
        "notes": list(trace.notes),
    }
    stream.write(f'{{"displayTimeUnit":"ms","otherData":{_encode(about)},"traceEvents":[\n'.encode())
    count = 0
    for lines in _pieces(_events(trace)):
        stream.write(((",\n" if count else "") + ",\n".join(lines)).encode("utf-8"))
        count += len(lines)
    stream.write(b"\n]}\n")
    return count


def _pieces(events: Iterator[dict[str, Any]]) -> Iterator[list[str]]:
    lines: list[str] = []
    for event in events:
        lines.append(_encode(event))
        if len(lines) == _LINES_AT_ONCE:
            yield lines
            lines = []
    if lines:
        yield lines


def _events(trace: TraceFile) -> Iterator[dict[str, Any]]:
    """Yield every event; those of one row by time.

    Viewers take 0 for an idle processor and a thread numbered as its process for the main one: no row is either.
    """
    for process in trace.processes:
        pid = process.rank + 1
        yield _fact("process_name", pid, 0, "name", process.name)
        yield _fact("process_sort_index", pid, 0, "sort_index", process.rank)
        for tid, track in enumerate(process.tracks, 100 * pid):
            yield _fact("thread_name", pid, tid, "name", track.name)
            yield _fact("thread_sort_index", pid, tid, "sort_index", tid)
            for one in track.slices:
                yield {
                    "name": one.name,
                    "cat": one.category,
                    "ph": "X",
                    "ts": (one.start_ns - trace.origin_ns) / 1000,
                    "dur": (one.end_ns - one.start_ns) / 1000,
                    "pid": pid,
                    "tid": tid,
                    "args": one.facts,
                }
        for counter in process.counters:
            yield from _counter_events(counter, pid, trace.origin_ns)


def _counter_events(counter: Counter, pid: int, origin_ns: int) -> Iterator[dict[str, Any]]:
    series = list(counter.values)
    for t_ns, values in zip(counter.t_ns.tolist(), zip(*counter.values.values(), strict=True), strict=True):
        yield {
            "name": counter.name,
            "ph": "C",
            "ts": (t_ns - origin_ns) / 1000,
            "pid": pid,
            "tid": 0,
            "args": dict(zip(series, values, strict=True)),
        }


def _fact(name: str, pid: int, tid: int, key: str, value: object) -> dict[str, Any]:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {key: value}}


def _name(rank: Rank) -> str:
    devices = dict.fromkeys(one.name or "" for one in rank.manifest.devices)
    return shown(" · ".join([f"rank {rank.number}", *filter(None, devices)]))
