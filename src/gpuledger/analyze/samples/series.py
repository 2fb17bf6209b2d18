"""A quantity of a GPU or a process over time, from samples, or from the allocator's events if there are none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.memory.lifetimes import (
    Curve,
    Lives,
    allocated_curve,
    device_indices,
    read_lives,
    read_numbers,
)
from gpuledger.analyze.memory.timeline import event_times_ns, thin
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.analyze.samples.repeats import gathered, middle_of, repeat_of
from gpuledger.errors import EmptyRunError, UsageError
from gpuledger.model.arrow_numbers import to_floats, to_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuledger.model.run import Rank, Run

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
MEMORY = "memory"
CPU = -1
SECONDS, STEPS, EVENTS = "s", "step", "event"
"""Units of a line's x axis. Logs without times have steps, or only the order of their allocations."""
_KEPT_POINTS = 4000
UNKNOWN_CARD = "unknown GPU"
BOOK_SOURCE = "allocated bytes"
PROCESS_SOURCE = "bytes of the program's processes on the GPU"
STAND_IN_SOURCE = "the GPU's bytes above its first sample, because the program's processes are unknown"
STEPS_SOURCE = "highest allocated bytes of each step"
UNTIMED_NS = 1_000_000_000
_SOURCES = {
    "used_bytes": "bytes in use on the GPU",
    "power_average_w": "mean of the last second",
    "power_instant_w": "instant, 25 ms of every 100",
    "utilization_frac": "share of time with a kernel on the GPU",
    "sm_clock_mhz": "clock of the multiprocessors",
}


@dataclass(frozen=True)
class PlottedQuantity:
    """A quantity to plot: title, unit (B, W, 1 or MHz), and the columns of ``samples`` that contain it.

    The first column that every run has is used. Columns are never mixed, because they measure different things.
    """

    title: str
    unit: str
    columns: tuple[str, ...]


QUANTITIES = {
    MEMORY: PlottedQuantity("GPU memory", "B", ("used_bytes",)),
    "power": PlottedQuantity("Power", "W", ("power_instant_w", "power_average_w")),
    "utilization": PlottedQuantity("GPU utilization", "1", ("utilization_frac",)),
    "clock": PlottedQuantity("Clock of the multiprocessors", "MHz", ("sm_clock_mhz",)),
}


@dataclass(frozen=True)
class SampleLine:
    """Samples: ``t_ns`` int64[n] (Unix time, never decreasing), ``values`` float64[n], with at least one sample.

    If ``clock`` is not :data:`SECONDS`, there are no times: ``t_ns`` is then the step or the event, times
    :data:`UNTIMED_NS`.

    ``first_use_ns`` is when the bytes first exceeded the first sample; None if they never did or were not read. If
    ``steps`` is set, a value is valid until the next one (allocator events); otherwise it is a sample.
    """

    name: str
    rank: int
    device_idx: int
    device_name: str
    t_ns: I64
    values: F64
    capacity: float | None
    first_use_ns: int | None
    source: str
    steps: bool = False
    clock: str = SECONDS
    exit_status: int | None = None
    repeat_of: tuple[int, str] | None = None


@dataclass(frozen=True)
class Series:
    """A line to plot: ``t_s`` float64[n] from its own time 0, ``values`` float64[n] above ``baseline``.

    For a repeated command, it is the run with the median peak, and all runs are between ``low`` and ``high``
    float64[n].
    """

    line: SampleLine
    t_s: F64
    values: F64
    baseline: float
    low: F64 | None = None
    high: F64 | None = None
    repeats: int = 1

    @property
    def name(self) -> str:
        """Return the line's name: its run, and its rank and device if there are several."""
        if self.repeats > 1 and self.line.repeat_of is not None:
            return self.line.repeat_of[1] + self.line.name.partition(" · ")[1] + self.line.name.partition(" · ")[2]
        return self.line.name

    @property
    def peak(self) -> tuple[float, float]:
        """Return time in seconds and value of the highest point; if several are equal, the first."""
        place = int(np.argmax(self.values))
        return float(self.t_s[place]), float(self.values[place])


def build_series(
    runs: Sequence[Run],
    metric: str = MEMORY,
    *,
    align: str = "start",
    baseline: str | None = None,
    per: str = "device",
    points: int = _KEPT_POINTS,
) -> tuple[list[Series], list[str]]:
    """Return a line for each GPU of each run, in the order of the runs, and notes on missing samples.

    Args:
        runs: Runs to plot.
        metric: One of :data:`QUANTITIES`.
        align: Time 0 of a line: the ``start`` of its samples, or the ``first-use`` of memory.
        baseline: ``first`` subtracts the first sample, ``none`` does not. The default is ``first`` for the memory of a
            whole GPU, ``none`` for all others.
        per: ``device`` or ``process``: the memory of a GPU, or what the driver reports for the program's processes.
        points: Maximum number of points. A longer line is thinned; its highest and lowest points stay.

    Raises:
        EmptyRunError: no run has such samples.
        UsageError: the metric is not memory and ``per`` is ``process``, or only some of the runs have times.

    Source: the tables ``samples`` and ``process_samples``; for a run without them, the allocator's bytes from
    ``blocks``.
    """
    if per == "process" and metric != MEMORY:
        raise UsageError(f"--per process: {metric} is measured for a whole GPU only", hint="Use --metric memory")
    found, notes = read_lines(runs, metric, per)
    if not found:
        hint = "Sample a GPU with: gpuledger watch -- COMMAND"
        raise EmptyRunError(notes[0].rstrip(".") if notes else "no runs given", hint=hint)
    _check_clocks(found)
    placed = [_placed(line, align, baseline, points) for line in found]
    together = gathered([(_repeat_key(one.line, number), one) for number, one in enumerate(placed)])
    return [middle_of(ones) if len(ones) > 1 else ones[0] for ones in together], notes


def _check_clocks(lines: Sequence[SampleLine]) -> None:
    """Raise an error if the lines have different axes.

    Raises:
        UsageError: the lines have different axes.
    """
    names = {line.clock: line.name for line in lines}
    if len(names) > 1:
        what = {SECONDS: "seconds", STEPS: "steps and no time", EVENTS: "neither time nor step"}
        words = ", ".join(f"{name} has {what[clock]}" for clock, name in sorted(names.items()))
        raise UsageError(f"runs without an axis in common: {words}", hint="Plot them one by one")


def _repeat_key(line: SampleLine, number: int) -> tuple[object, ...]:
    """Return a key that is equal for the repeats of one line: its variant, rank and GPU."""
    return (line.repeat_of, line.rank, line.device_idx) if line.repeat_of else (number,)


def read_lines(runs: Sequence[Run], metric: str = MEMORY, per: str = "device") -> tuple[list[SampleLine], list[str]]:
    """Return the lines of the runs before alignment, and a note for each run without one; see `build_series`."""
    column = _common_column(runs, QUANTITIES[metric].columns)
    found: list[SampleLine] = []
    notes: list[str] = []
    for run in runs:
        lines = [line for rank in run.ranks for line in _lines_of(run, rank, metric, column, per)]
        if not lines:
            notes.append(
                f"{run.name}: the run has no samples of {metric}" + (" of a process." if per == "process" else ".")
            )
        found += lines
    names = told_apart([line.name for line in found])
    return [replace(line, name=name) for line, name in zip(found, names, strict=True)], notes


def told_apart(names: Sequence[str]) -> list[str]:
    """Return the names, with a number appended to each repeated one."""
    seen = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, seen, strict=True)]


def _common_column(runs: Sequence[Run], columns: tuple[str, ...]) -> str:
    """Return the first column that every run with samples has; if there is none, the first that any run has."""
    present = [{name for rank in run.ranks for name in columns if _has_values(rank, name)} for run in runs]
    known = [names for names in present if names]
    common = [name for name in columns if known and all(name in names for names in known)]
    return (common or [name for name in columns if any(name in names for names in known)] or list(columns))[0]


def _has_values(rank: Rank, column: str) -> bool:
    values = rank.table("samples", (column,)).column(0)
    return bool(values.null_count < len(values))


def _lines_of(run: Run, rank: Rank, metric: str, column: str, per: str) -> list[SampleLine]:
    if per == "process":
        lines = _process_lines(rank)
        if not lines and rank.manifest.processes_known is False:
            lines = [_above_first(line) for line in _device_lines(rank, column)]
    else:
        untimed = metric == MEMORY and is_untimed(rank)  # samples and blocks without times have no common axis
        lines = [] if untimed else _device_lines(rank, column)
        if not lines and metric == MEMORY:
            lines = [_allocator_line(rank, device) for device in device_indices(rank)]
    named = []
    for line in lines:
        device = "CPU" if line.device_idx == CPU else f"GPU {line.device_idx}"
        parts = [f"rank {rank.number}"] * (len(run.ranks) > 1) + [device] * (len(lines) > 1)
        status = run.manifest.exit_status
        name = " · ".join([run.name, *parts])
        named.append(replace(line, name=name, exit_status=status, repeat_of=repeat_of(run)))
    return named


def _device_lines(rank: Rank, column: str) -> list[SampleLine]:
    devices = np.unique(to_numbers(rank.table("samples", ("device_idx",)).column(0))).tolist()
    return [line for device in devices if (line := _sample_line(rank, device, column)) is not None]


def _above_first(line: SampleLine) -> SampleLine:
    """Return a GPU's bytes above its first sample, which approximate the program's if its processes are unknown."""
    return replace(line, values=np.maximum(line.values - line.values[0], 0.0), source=STAND_IN_SOURCE)


def _sample_line(rank: Rank, device_idx: int, column: str) -> SampleLine | None:
    table = rank.table("samples", tuple(dict.fromkeys(("t_ns", "device_idx", "used_bytes", column))))
    mine = to_numbers(table["device_idx"]) == device_idx
    times, values = known_values(table, column, mine)
    if not values.size:
        return None
    name, capacity = _card(rank, device_idx)
    first_use_ns = _first_use(*known_values(table, "used_bytes", mine))
    shown_capacity = capacity if column == "used_bytes" else None
    return SampleLine("", rank.number, device_idx, name, times, values, shown_capacity, first_use_ns, _SOURCES[column])


def _process_lines(rank: Rank) -> list[SampleLine]:
    """Return the memory of the program's own processes, summed at each sample: one line per GPU.

    If the driver's process ids are of another namespace (in a container), nothing can be summed, and the list is empty.
    """
    table = rank.table("process_samples", ("t_ns", "device_idx", "pid", "bytes"))
    devices, pids = to_numbers(table["device_idx"]), to_numbers(table["pid"])
    mine = own_pids(rank)
    own = np.isin(pids, mine) if mine else np.ones(pids.size, dtype=bool)
    lines = []
    for device_idx in np.unique(devices[own]).tolist():
        times, values = known_values(table, "bytes", own & (devices == device_idx))
        if values.size:
            moments, place = np.unique(times, return_inverse=True)
            summed = np.zeros(moments.size)
            np.add.at(summed, place, values)
            name, capacity = _card(rank, device_idx)
            lines.append(
                SampleLine(
                    "", rank.number, device_idx, name, moments, summed, capacity, int(moments[0]), PROCESS_SOURCE
                )
            )
    return lines


def own_pids(rank: Rank) -> list[int]:
    """Return the program's process ids from the rank's manifest; empty if they are not recorded."""
    pids = rank.manifest.pids or (rank.manifest.pid,)
    return [pid for pid in pids if isinstance(pid, int)]


def _allocator_line(rank: Rank, device_idx: int) -> SampleLine:
    """Return the allocated bytes of one device, which change at each event.

    Source: the allocator's events, exact.
    """
    lives = read_lives(rank, device_idx)
    curve = allocated_curve(lives)
    clock, times, held = _laid_out(rank, lives, curve)
    above = np.flatnonzero(held > 0)
    name, capacity = _card(rank, device_idx)
    first_use_ns = int(times[above[0]]) if above.size else None
    values, source = held.astype(np.float64), STEPS_SOURCE if clock == STEPS else BOOK_SOURCE
    steps = clock != STEPS
    return SampleLine(
        "", rank.number, device_idx, name, times, values, capacity, first_use_ns, source, steps=steps, clock=clock
    )


def has_times(rank: Rank, device_idx: int) -> bool:
    """Return whether any allocation of a device has a time; most older logs have none."""
    return bool((read_numbers(rank, "blocks", "alloc_ns", device_idx, NEVER) != NEVER).any())


def is_untimed(rank: Rank) -> bool:
    """Return whether a rank has allocations, all without times."""
    devices = device_indices(rank)
    return bool(devices) and not any(has_times(rank, device_idx) for device_idx in devices)


def _laid_out(rank: Rank, lives: Lives, curve: Curve) -> tuple[str, I64, I64]:
    """Return clock, positions and allocated bytes of a line; for steps without times, the highest bytes of each."""
    device_idx = lives.device_idx
    if has_times(rank, device_idx):
        return SECONDS, event_times_ns(rank, lives), curve.bytes
    first, last, numbers = (
        read_numbers(rank, "steps", name, device_idx) for name in ("start_index", "end_index", "step")
    )
    if rank.manifest.recorder.has_segments or not numbers.size or (first < 0).any():
        return EVENTS, np.maximum(curve.index, 0) * UNTIMED_NS, curve.bytes
    begin = np.maximum(np.searchsorted(curve.index, first, side="right") - 1, 0)
    end = np.searchsorted(curve.index, last, side="right")
    pairs = zip(begin.tolist(), end.tolist(), strict=True)
    highest = [int(curve.bytes[start : max(stop, start + 1)].max()) for start, stop in pairs]
    return STEPS, numbers * UNTIMED_NS, np.array(highest, dtype=np.int64)


def _placed(line: SampleLine, align: str, baseline: str | None, points: int) -> Series:
    """Return a line with its own time 0, its baseline subtracted, and thinned."""
    chosen = baseline or ("first" if line.source == _SOURCES["used_bytes"] else "none")
    base = float(line.values[0]) if chosen == "first" else 0.0
    zero_ns = line.first_use_ns if align == "first-use" and line.first_use_ns is not None else int(line.t_ns[0])
    if line.clock != SECONDS:
        zero_ns = 0  # the axis is the step's number
    kept = thin(line.values, line.t_ns, points)
    return Series(line, (line.t_ns[kept] - zero_ns) / 1e9, line.values[kept] - base, base)


def known_values(table: Any, column: str, mine: NDArray[np.bool_]) -> tuple[I64, F64]:
    """Return times and values of the selected rows that have a value, ordered by time."""
    values = to_floats(table[column])
    times = to_numbers(table["t_ns"])
    there = np.flatnonzero(mine & ~np.isnan(values))
    there = there[np.argsort(times[there], kind="stable")]
    return times[there], values[there]


def _first_use(times: I64, used: F64) -> int | None:
    above = np.flatnonzero(used > used[0]) if used.size else np.array([], dtype=np.int64)
    return int(times[above[0]]) if above.size else None


def _card(rank: Rank, device_idx: int) -> tuple[str, float | None]:
    """Return name and capacity in bytes of a GPU; None if unknown."""
    if device_idx == CPU:
        return "CPU tensors", None
    facts = rank.manifest.device(device_idx)
    return facts.name or UNKNOWN_CARD, float(facts.total_bytes) if facts.total_bytes else None
