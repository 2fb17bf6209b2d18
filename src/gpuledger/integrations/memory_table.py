"""The printed table and the CSV rows of the drop-in memory profiler: the older tool's, and what is new after them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuledger.analyze.overview.iteration import BEYOND, CARD_LINES, NOT_CACHED_YET, PEAK_WORDS, Iteration
from gpuledger.errors import UsageError
from gpuledger.units import device_label

MB = 1_000_000
LABELS = {
    "weight": "Layer weights",
    "weight of other modules": "Weights of other modules",
    "buffer": "Buffers",
    "input": "Inputs",
    "activation": "Feature maps",
    "gradient": "Layer weight gradients",
    "gradient of other modules": "Weight gradients of other modules",
    "activation_gradient": "Intermediate gradients",
    "optimizer_state": "Optimizer state",
    "temporary": "Temporaries",
    "workspace": "Library workspaces",
    "communication": "Communication",
    "other": "Other",
    "rounding": "Rounding",
    "fragmented": "Free inside segments in use",
    "free_segments": "Free segments",
    "awaiting_free": "Awaiting other streams",
    "not_cached_yet": "Cached later in the iteration",
}
"""What each line of the last block is called."""
OLD_COLUMNS = ("epoch", "iteration", "peak_cached", "current_cached", "total_feature_map_usage", "total_weight_usage")
NEW_COLUMNS = (
    "optimizer_state_bytes",
    "buffer_bytes",
    "temporary_bytes",
    "allocated_bytes",
    *(f"{name}_bytes" for name in (*BEYOND, *CARD_LINES)),
)
"""Follow the older tool's columns, in bytes; after them every parameter and its gradient in bytes."""
EXACT_COLUMNS = (
    "device",
    "peak_cached_bytes",
    "current_cached_bytes",
    "feature_map_bytes",
    "total_weight_bytes",
    "total_weight_gradient_bytes",
    "intermediate_gradient_bytes",
    f"{NOT_CACHED_YET}_bytes",
    *(f"at_peak_{word.replace(' ', '_')}_bytes" for word in PEAK_WORDS),
)
"""Follow the parameters: what the table prints in MB, exact, and each line of its last block. All devices' bytes."""

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class MemoryReport:
    """One iteration as it is printed. ``weights`` and ``gradients`` list every parameter's own bytes.

    ``weight_bytes`` counts storage that parameters share once. ``gradient_bytes`` is the most that gradients held
    together.
    """

    epoch: int
    iteration: int
    weight_bytes: int
    weights: Sizes
    gradient_bytes: int
    gradients: Sizes
    devices: tuple[Iteration, ...]

    def total(self, name: str) -> int:
        """Return a quantity of :class:`Iteration`, of all devices together."""
        return sum(getattr(device, name) for device in self.devices)


def to_mb(size_bytes: int) -> int:
    """Return bytes in whole MB of 10^6, rounded as the older tool did."""
    return round(float(size_bytes) / MB)


def table_lines(report: MemoryReport) -> list[str]:
    """Return the printed table."""
    stars = "*" * 43
    return [
        "",
        stars,
        f"Memory Usage for Iteration {report.iteration} of Epoch {report.epoch}",
        stars,
        _line("Peak cached", to_mb(report.total("peak_cached_bytes"))),
        _line("Current cached", to_mb(report.total("current_cached_bytes"))),
        _line("Total feature map usage", to_mb(report.total("feature_map_bytes"))),
        "",
        _line("Total layer weight usage", to_mb(report.weight_bytes)),
        *(_below(name, to_mb(size)) for name, size in report.weights),
        "",
        _line("Total layer weight gradient usage", to_mb(report.gradient_bytes)),
        *(_below(f"{name} grad", to_mb(size)) for name, size in report.gradients),
        _line("Intermediate gradients", to_mb(report.total("intermediate_gradient_bytes"))),
        *(line for device in report.devices for line in _peak_lines(device, alone=len(report.devices) == 1)),
    ]


def _peak_lines(device: Iteration, *, alone: bool) -> list[str]:
    """Return one device's instant: what was allocated, and what was cached beyond it."""
    where = "" if alone else f" ({'CPU' if device.device_idx < 0 else f'cuda:{device.device_idx}'})"
    beyond = tuple((name, size) for name, size in device.beyond if size)
    lines = ["", *_summed(f"At the iteration's peak{where}", device.at_peak)]
    return [*lines, *_summed(f"Cached beyond that{where}", beyond)] if beyond else lines


def _summed(title: str, sizes: Sizes) -> list[str]:
    """Return a title with its sum and the lines below it, rounded so that they add up to the sum as printed."""
    total = to_mb(sum(size for _, size in sizes))
    return [
        _line(title, total),
        *(_below(LABELS.get(name, name), shown) for (name, _), shown in zip(sizes, _shares(sizes, total), strict=True)),
    ]


def _shares(sizes: Sizes, total: int) -> list[int]:
    """Return whole MB that sum to ``total``, by the largest remainder method."""
    shown = [size // MB for _, size in sizes]
    order = sorted(range(len(sizes)), key=lambda place: -(sizes[place][1] % MB))
    for place in order[: total - sum(shown)]:
        shown[place] += 1
    return shown


def _line(name: str, size_mb: int) -> str:
    return f"{name:.<45s}{size_mb:.>5d} MB"


def _below(name: str, size_mb: int) -> str:
    return f"{'':<2s}{name:.<43s}{size_mb:.>5d} MB"


class CsvFile:
    """Writes a row for each report to ``directory/<time>.csv``.

    Raises:
        UsageError: the file cannot be made.
    """

    def __init__(self, directory: Path, names: Sequence[str]) -> None:
        try:
            directory.mkdir(exist_ok=True)
            self.path = _free_path(directory, datetime.now().strftime("%Y%m%d%H%M%S"))
            self._write(_header(names), "x")
        except OSError as error:
            raise UsageError(f"memory_profiler: {directory}: cannot be written: {error}") from error

    def add(self, report: MemoryReport) -> None:
        """Append a report's row.

        Raises:
            OSError: the disk is full, or the directory is gone.
        """
        self._write(_row(report), "a")

    def _write(self, cells: Sequence[Any], mode: str) -> None:
        with self.path.open(mode, encoding="utf-8", errors="backslashreplace", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)


def _free_path(directory: Path, stem: str) -> Path:
    """Return a path nobody has: two profilers may begin within a second."""
    path, number = directory / f"{stem}.csv", 1
    while path.exists():
        number += 1
        path = directory / f"{stem}-{number}.csv"
    return path


def _header(names: Sequence[str]) -> list[str]:
    old = [*OLD_COLUMNS, *names, "total_layer_weight_gradient_usage", *(f"{name}_grad" for name in names)]
    exact = [f"{name}{ending}" for ending in ("_bytes", "_grad_bytes") for name in names]
    return [*old, "intermediate_gradients", *NEW_COLUMNS, *exact, *EXACT_COLUMNS]


def _row(report: MemoryReport) -> list[Any]:
    weights, gradients = ([size for _, size in sizes] for sizes in (report.weights, report.gradients))
    old = [
        report.epoch,
        report.iteration,
        to_mb(report.total("peak_cached_bytes")),
        to_mb(report.total("current_cached_bytes")),
        to_mb(report.total("feature_map_bytes")),
        to_mb(report.weight_bytes),
        *map(to_mb, weights),
        to_mb(report.gradient_bytes),
        *map(to_mb, gradients),
        to_mb(report.total("intermediate_gradient_bytes")),
    ]
    quantities = [report.total(name) for name in NEW_COLUMNS[:4]]
    beyond = [sum(dict(device.beyond)[name] for device in report.devices) for name in BEYOND]
    card = [_card_bytes(report, name) for name in CARD_LINES]
    return [*old, *quantities, *beyond, *card, *weights, *gradients, *_exact_cells(report)]


def _exact_cells(report: MemoryReport) -> list[Any]:
    """Return the cells of :data:`EXACT_COLUMNS`."""
    devices = report.devices
    totals = {
        "total_weight_bytes": report.weight_bytes,
        "total_weight_gradient_bytes": report.gradient_bytes,
        f"{NOT_CACHED_YET}_bytes": sum(dict(device.beyond)[NOT_CACHED_YET] for device in devices),
    }
    words = [sum(dict(device.at_peak).get(word, 0) for device in devices) for word in PEAK_WORDS]
    named = EXACT_COLUMNS[1 : -len(PEAK_WORDS)]
    sizes = [totals[name] if name in totals else report.total(name) for name in named]
    return [" ".join(device_label(device.device_idx) for device in devices), *sizes, *words]


def _card_bytes(report: MemoryReport, name: str) -> int | None:
    """Return a line of the GPUs; None, an empty cell, where one of them is not known."""
    found = [dict(device.card)[name] for device in report.devices]
    return None if any(size is None for size in found) else sum(size or 0 for size in found)
