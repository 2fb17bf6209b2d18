"""What a trace shows of one rank as rows of slices: steps, phases, pauses, energy windows, modules and work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.memory.lifetimes import device_indices
from gpuledger.analyze.memory.timeline import bands
from gpuledger.analyze.step.streams import ModuleRange, StreamWork, module_ranges, nested_lanes, read_streams
from gpuledger.report.trace.names import shown
from gpuledger.units import device_label

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

MODULES = "modules"


@dataclass(frozen=True)
class Slice:
    """One slice: its name, its kind, its times (Unix ns) and its details."""

    name: str
    category: str
    start_ns: int
    end_ns: int
    facts: dict[str, Any]


@dataclass(frozen=True)
class Track:
    """One row of a trace; its slices are by start, the longest first, and nest or are apart."""

    name: str
    slices: list[Slice]


def read_tracks(rank: Rank) -> list[Track]:
    """Return the rows of one rank from the outermost to the innermost; rows without a slice are left out."""
    words = _Words(rank)
    tracks = [
        *_apart("steps", _steps(rank)),
        *_apart("phases", _phases(rank)),
        *_apart("energy windows", _windows(rank)),
        *_apart("recorder's pauses", _pauses(rank)),
    ]
    for work in read_streams(rank):
        name = _stream_name(work)
        tracks.append(Track(f"{name} · {MODULES}", _modules(work, words)))
        tracks.append(Track(name, list(_work(work, words))))
    return [track for track in tracks if track.slices]


class _Words:
    """What the numbers in a rank's tables stand for, as they are shown."""

    def __init__(self, rank: Rank) -> None:
        names = rank.table("names", ("name_id", "name"))
        modules = rank.table("modules", ("module_id", "parent_id", "path", "class_name"))
        numbers = modules["module_id"].to_pylist()
        parents = [-1 if parent is None else parent for parent in modules["parent_id"].to_pylist()]
        self.names = _texts(names["name_id"].to_pylist(), names["name"].to_pylist())
        self.paths = _texts(numbers, modules["path"].to_pylist())
        self.classes = _texts(numbers, modules["class_name"].to_pylist())
        self.parents = dict(zip(numbers, parents, strict=True))

    def path(self, module_id: int) -> str:
        """Return a module's path; "" outside modules."""
        return "" if module_id < 0 else self.paths.get(module_id, f"(module {module_id})")


def _texts(numbers: list[int], texts: list[str]) -> dict[int, str]:
    return {number: shown(text) for number, text in zip(numbers, texts, strict=True)}


def _apart(name: str, slices: Iterable[Slice]) -> list[Track]:
    """Return ``slices`` as one row, or as several where they overlap without one holding the other."""
    ordered = sorted(slices, key=lambda one: (one.start_ns, -one.end_ns))
    starts = np.array([one.start_ns for one in ordered], dtype=np.int64)
    ends = np.array([one.end_ns for one in ordered], dtype=np.int64)
    rows: dict[int, list[Slice]] = {}
    for lane, one in zip(nested_lanes(starts, ends).tolist(), ordered, strict=True):
        rows.setdefault(lane, []).append(one)
    return [Track(_laned(name, lane), rows[lane]) for lane in sorted(rows)]


def _laned(name: str, lane: int) -> str:
    return f"{name} ({lane + 1})" if lane else name


def _steps(rank: Rank) -> Iterator[Slice]:
    """Yield each step once: every device of a process has the same."""
    seen: set[int] = set()
    for row in rank.table("steps").to_pylist():
        if row["step"] in seen:
            continue
        seen.add(row["step"])
        facts = {"step": row["step"], "ended by": row["kind"], "recorded": row["recorded"]}
        yield Slice(
            f"step {row['step']}", "step", row["start_ns"], row["end_ns"], facts | {"paused_ns": row["paused_ns"]}
        )


def _phases(rank: Rank) -> Iterator[Slice]:
    for device in device_indices(rank)[:1]:
        for band in bands(rank, device):
            if band.kind == "phase":
                yield Slice(band.label, "phase", band.start_ns, band.end_ns, {"step": band.step})


def _windows(rank: Rank) -> Iterator[Slice]:
    for row in rank.table("windows").to_pylist():
        facts = {name: _known(row[name]) for name in ("energy_j", "uncertainty_j", "ticks", "throttled_ns")}
        name = shown(row["name"] or "energy window")
        yield Slice(
            name, "energy", row["start_ns"], row["end_ns"], {"device": device_label(row["device_idx"]), **facts}
        )


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _pauses(rank: Rank) -> Iterator[Slice]:
    for pause in rank.manifest.pauses:
        yield Slice(shown(pause.reason), "pause", pause.start_ns, pause.start_ns + pause.duration_ns, {})


def _modules(work: StreamWork, words: _Words) -> list[Slice]:
    return [_range_slice(one, words) for one in module_ranges(work, words.parents)]


def _range_slice(one: ModuleRange, words: _Words) -> Slice:
    facts: dict[str, Any] = {"step": one.step}
    if one.module_id >= 0:
        path, above = words.path(one.module_id), words.path(words.parents.get(one.module_id, -1))
        facts |= {"phase": one.phase, "module": path, "class": words.classes.get(one.module_id, "")}
        name, category = path.removeprefix(f"{above}.") if above else path, "module"
    elif one.phase:
        facts["phase"] = one.phase
        name, category = one.phase, "phase"
    else:
        name, category = f"step {one.step}" if one.step > 0 else "outside steps", "step"
    return Slice(name, category, one.start_ns, one.end_ns, facts)


def _work(work: StreamWork, words: _Words) -> Iterator[Slice]:
    rows = zip(
        *(column.tolist() for column in (work.name_id, work.kind, work.start_ns, work.end_ns)),
        *(column.tolist() for column in (work.operator_id, work.module_id, work.scope_id, work.phase, work.step)),
        strict=True,
    )
    for name_id, kind, start_ns, end_ns, operator_id, module_id, scope_id, phase, step in rows:
        facts = {"module": words.path(module_id), "phase": phase, "step": step}
        if scope_id >= 0:
            facts["scope"] = words.names.get(scope_id, "")
        if operator_id >= 0 and not work.on_host:
            facts["operator"] = words.names.get(operator_id, "")
        yield Slice(words.names.get(name_id) or kind, kind, start_ns, end_ns, facts)


def _stream_name(work: StreamWork) -> str:
    if work.on_host:
        name = "host operators" if work.stream < 0 else f"host thread {work.stream}"
    else:
        name = f"{device_label(work.device_idx)} stream {work.stream if work.stream >= 0 else '?'}"
    return _laned(name, work.lane)
