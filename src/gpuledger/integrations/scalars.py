"""The scalars of a run, the same for every logger, and the one small interface that a logger has to meet."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from gpuledger.analyze.compare.metrics import measure, metric_devices
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.memory.lifetimes import allocated_curve, device_indices, read_lives
from gpuledger.errors import EmptyRunError, UsageError

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

PREFIX = "gpuledger/"


class Sink(Protocol):
    """Where scalars go. ``close`` writes what is left; a sink that was given a logger of yours leaves it open."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log values under their names at a step."""

    def close(self) -> None:
        """Write what is left."""


def log_run(run: Run, sink: Sink) -> int:
    """Log every step of a run and then its figures, and return how many scalars that were; the sink stays open.

    Raises:
        EmptyRunError: the run has nothing to log.
    """
    count, last = 0, 0
    for step, values in step_scalars(run):
        sink.log(values, step)
        count, last = count + len(values), step
    figures = run_scalars(run)
    sink.log(figures, last)
    return count + len(figures)


def step_scalars(run: Run) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each step's number with its time in nanoseconds and, where it was recorded, its peak in bytes.

    Source: the rank and device with the highest peak; host clock less the recorder's pauses; allocator's history.
    """
    rank, device = _main_place(run)
    columns = ("step", "device_idx", "recorded", "start_ns", "end_ns", "paused_ns", "start_index")
    for row in rank.table("steps", columns).to_pylist():
        if row["device_idx"] != device:
            continue
        values = {f"{PREFIX}step_time_ns": float(row["end_ns"] - row["start_ns"] - row["paused_ns"])}
        if row["recorded"] and row["start_index"] is not None and device in device_indices(rank):
            peak = find_peak(rank, device, row["step"])
            size = allocated_curve(read_lives(rank, device)).at(peak.index)
            values[f"{PREFIX}step_peak_allocated_bytes"] = float(size)
        yield row["step"], values


def run_scalars(run: Run) -> dict[str, float]:
    """Return the run's figures under their metric names, and the bytes of each category at the peak.

    Raises:
        EmptyRunError: the run has none.
    """
    rank, device = _main_place(run)
    values = {f"{PREFIX}{name}": float(metric.value) for name, metric in measure(rank, device).items()}
    if device in device_indices(rank):
        accounts = break_down(rank, find_peak(rank, device), by=("category",)).accounts
        values |= {f"{PREFIX}category/{account.category}_bytes": float(account.bytes) for account in accounts}
    return values


def load_logger(module: str, extra: str) -> Any:
    """Return a logger's package, imported now.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{module}: not installed", hint=f"pip install 'gpuledger[{extra}]'") from error


def _main_place(run: Run) -> tuple[Rank, int]:
    """Return the rank and device with the highest allocated peak; the first one where there are no blocks."""
    places = [(rank, device) for rank in run.ranks for device in metric_devices(rank)]
    if not places:
        raise EmptyRunError(f"{run.path.name}: nothing was recorded", hint="See why with: gpuledger show RUN")

    def peak(place: tuple[Rank, int]) -> float:
        found = measure(*place).get("peak_allocated_bytes")
        return found.value if found else 0.0

    return max(places, key=peak)
