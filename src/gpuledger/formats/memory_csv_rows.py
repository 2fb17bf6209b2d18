"""The columns of a memory profiler's CSV, and the bytes of each quantity in a row, at one or more moments.

The older tool writes each quantity once, in whole MB. Its replacement, gpuledger.integrations.memory_profiler, writes
the quantities at the peak of allocated memory. It also writes each quantity's own highest bytes, which can be at a
different time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuledger.errors import InputError
from gpuledger.model.accounts import ROUNDING

MB = 1_000_000
FIRST = ("epoch", "iteration", "peak_cached", "current_cached", "total_feature_map_usage", "total_weight_usage")
GRADIENTS = "total_layer_weight_gradient_usage"
LAST = "intermediate_gradients"
ALLOCATED = "allocated_bytes"
MAX_MB = 1 << 24
MAX_NUMBER = 1 << 30
PEAK_NAMES = {
    "weight": ("weights", "weight"),
    "weight_of_other_modules": ("weights of other modules", "weight"),
    "buffer": ("buffer", "buffer"),
    "input": ("inputs", "input"),
    "activation": ("feature maps", "activation"),
    "gradient": ("gradients", "gradient"),
    "gradient_of_other_modules": ("gradients of other modules", "gradient"),
    "activation_gradient": ("intermediate gradients", "activation_gradient"),
    "optimizer_state": ("optimizer state", "optimizer_state"),
    "temporary": ("temporary", "temporary"),
    "workspace": ("workspace", "workspace"),
    "communication": ("communication", "communication"),
    "other": ("other", "other"),
}
"""Word of a column ``at_peak_<word>_bytes`` -> the entry's name and category."""
LASTING = ("weight", "buffer", "optimizer_state")
"""Categories that are assumed to be allocated during the whole iteration."""
UNDIVIDED = ("feature maps, gradients and others: the file does not divide them at the peak", "other", "")

Quantity = tuple[str, str, str]
"""Name, category and module of one entry."""
Sizes = dict[Quantity, int]


@dataclass(frozen=True)
class Columns:
    """Positions of the columns. ``exact`` are the replacement's columns; exact bytes of parameters are by position."""

    count: int
    weights: tuple[tuple[str, int], ...]
    gradients_total: int
    gradients: tuple[tuple[str, int], ...]
    intermediate: int
    exact: Mapping[str, int]
    parameters_at: int | None

    @classmethod
    def of(cls, names: list[str], path: Path) -> Columns:
        """Return the columns of a header.

        Raises:
            InputError: it is not the header of such a file.
        """
        plain = [name.strip() for name in names]
        if tuple(plain[: len(FIRST)]) != FIRST or GRADIENTS not in plain or LAST not in plain:
            raise InputError(f"{path}: not a CSV of pytorch_mem_profiler: its first line names other columns")
        middle, last = plain.index(GRADIENTS), plain.index(LAST)
        if last < middle:
            raise InputError(f"{path}: not a CSV of pytorch_mem_profiler: its columns are in another order")
        weights = tuple((plain[at], at) for at in range(len(FIRST), middle))
        of_each = [f"{name}{ending}" for ending in ("_bytes", "_grad_bytes") for name, _ in weights]
        starts = range(last + 1, len(plain) - len(of_each) + 1)
        begin = next((at for at in starts if of_each and plain[at : at + len(of_each)] == of_each), None)
        inside = range(begin, begin + len(of_each)) if begin is not None else range(0)
        return cls(
            count=len(plain),
            weights=weights,
            gradients_total=middle,
            gradients=tuple((plain[at], at) for at in range(middle + 1, last)),
            intermediate=last,
            exact={name: at for at, name in enumerate(plain) if at > last and at not in inside},
            parameters_at=begin,
        )


@dataclass(frozen=True)
class Moment:
    """Bytes at one moment of an iteration. ``rounding_bytes`` are allocated minus requested bytes."""

    sizes: Sizes
    cached_bytes: int
    free_segment_bytes: int = 0
    rounding_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Return the allocated bytes."""
        return sum(self.sizes.values()) + self.rounding_bytes


@dataclass(frozen=True)
class IterationRow:
    """One iteration; its last moment is the peak of allocated bytes. ``card`` are the replacement's GPU values."""

    epoch: int
    iteration: int
    device: str
    moments: tuple[Moment, ...]
    current_cached_bytes: int
    peak_cached_bytes: int
    over_bytes: int
    card: Mapping[str, int | None]


CARD = ("context", "library", "driver", "other_processes", "unaccounted")


def cells_of(line: str) -> list[str]:
    """Return a line's cells."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return line.split(",")


def parse_row(columns: Columns, cells: list[str]) -> IterationRow:
    """Return the values of a row.

    Raises:
        ValueError: a column is missing, or its text is not a size.
    """
    if len(cells) < columns.count:
        raise ValueError(f"{len(cells)} columns where {columns.count} are due")
    reader = _Cells(columns, cells)
    epoch, iteration = (_number_of(cells[at]) for at in (0, 1))
    peak, current = (
        exact if (exact := reader.exact(f"{name}_bytes")) is not None else bytes_of(cells[at], MB)
        for name, at in (("peak_cached", 2), ("current_cached", 3))
    )
    moments, over = (_stated(reader, current), reader.over_bytes())
    if reader.exact(ALLOCATED) is not None:
        moments, over = _moments(reader, peak), 0
    return IterationRow(
        epoch,
        iteration,
        reader.text("device"),
        moments,
        current,
        peak,
        over,
        {name: reader.exact(f"{name}_bytes") for name in CARD},
    )


@dataclass(frozen=True)
class _Cells:
    """A row's cells, by meaning."""

    columns: Columns
    cells: list[str]

    def text(self, name: str) -> str:
        place = self.columns.exact.get(name)
        return "" if place is None else self.cells[place].strip()

    def exact(self, name: str) -> int | None:
        """Return the bytes in one of the replacement's columns; None if the column is missing or the cell is empty."""
        text = self.text(name)
        return bytes_of(text, 1) if text else None

    def parameters(self, gradients: bool) -> list[tuple[str, int]]:
        """Return the bytes of each parameter, or of each gradient."""
        parts = self.columns.gradients if gradients else self.columns.weights
        begin = self.columns.parameters_at
        if begin is None:
            return [(name, bytes_of(self.cells[at], MB)) for name, at in parts]
        begin += len(self.columns.weights) if gradients else 0
        return [(name, bytes_of(self.cells[begin + place], 1)) for place, (name, _) in enumerate(parts)]

    def total(self, gradients: bool) -> int:
        """Return the total of the parameters or of the gradients, as written in the file."""
        found = self.exact("total_weight_gradient_bytes" if gradients else "total_weight_bytes")
        if found is not None:
            return found
        if self.columns.parameters_at is not None:
            return sum(size for _, size in self.parameters(gradients))
        return bytes_of(self.cells[self.columns.gradients_total if gradients else 5], MB)

    def high(self, name: str, at: int) -> int:
        """Return a quantity's highest bytes: exact if the file has that column, otherwise in MB."""
        found = self.exact(name)
        return bytes_of(self.cells[at], MB) if found is None else found

    def over_bytes(self) -> int:
        """Return the bytes by which the rounded lines of a section exceed their total."""
        return max(sum(size for _, size in self.parameters(one)) - self.total(one) for one in (False, True))


def _stated(reader: _Cells, cached_bytes: int) -> tuple[Moment, ...]:
    """Return the older tool's single moment, with every quantity as written."""
    sizes: Sizes = {("feature maps", "activation", ""): bytes_of(reader.cells[4], MB)}
    for gradients, category in ((False, "weight"), (True, "gradient")):
        own = _by_parameter(reader.parameters(gradients), category)
        sizes |= own
        rest = reader.total(gradients) - sum(own.values())
        if rest > 0:
            sizes[f"{category}s below a line's rounding", category, ""] = rest
    sizes["intermediate gradients", "activation_gradient", ""] = bytes_of(reader.cells[reader.columns.intermediate], MB)
    for category in ("optimizer_state", "buffer", "temporary"):
        sizes[*PEAK_NAMES[category], ""] = reader.exact(f"{category}_bytes") or 0
    return (Moment(_some(sizes), cached_bytes),)


def _moments(reader: _Cells, cached_bytes: int) -> tuple[Moment, ...]:
    """Return the replacement's moments: those with a quantity above its bytes at the peak, and the peak."""
    peak = _peak(reader, cached_bytes)
    lasting = {quantity: size for quantity, size in peak.sizes.items() if quantity[1] in LASTING}
    found = []
    for category, sizes in _highs(reader):
        also = {"activation": ("activation", "input")}.get(category, (category,))
        at_peak = sum(size for quantity, size in peak.sizes.items() if quantity[1] in also)
        if at_peak < sum(sizes.values()) <= peak.held_bytes:
            beside = {quantity: size for quantity, size in lasting.items() if quantity[1] != category}
            fits = sum(beside.values()) + sum(sizes.values()) <= peak.held_bytes
            found.append(Moment((beside if fits else {}) | sizes, cached_bytes))
    if not found and peak.cached_bytes < cached_bytes:
        found.append(Moment(lasting, cached_bytes))
    return (*found, peak)


def _peak(reader: _Cells, cached_bytes: int) -> Moment:
    """Return the peak of allocated memory by quantity, with the cached bytes at that time."""
    allocated = reader.exact(ALLOCATED) or 0
    cached = max(cached_bytes - (reader.exact("not_cached_yet_bytes") or 0), allocated)
    free = min(reader.exact("free_segments_bytes") or 0, cached - allocated)
    words = {word: reader.exact(f"at_peak_{word}_bytes") for word in PEAK_NAMES}
    sizes: Sizes = {}
    rounding = reader.exact(f"at_peak_{ROUNDING}_bytes") or 0
    if any(size is not None for size in words.values()):
        for word, size in words.items():
            sizes |= _parts(reader, word, size or 0)
        if sum(sizes.values()) + rounding == allocated:
            return Moment(_some(sizes), cached, free, rounding)
        raise ValueError(f"lines of the peak that do not sum to its {allocated:,} bytes")
    for word in LASTING:
        size = reader.total(gradients=False) if word == "weight" else reader.exact(f"{word}_bytes") or 0
        sizes |= _parts(reader, word, size)
    left = allocated - sum(sizes.values())
    if left < 0:
        sizes, left = {}, allocated
    return Moment(_some({**sizes, UNDIVIDED: left}), cached, free)


def _parts(reader: _Cells, word: str, size: int) -> Sizes:
    """Return one line of the peak; by parameter if the parameters sum to it."""
    name, category = PEAK_NAMES[word]
    if word in ("weight", "gradient"):
        own = _by_parameter(reader.parameters(word == "gradient"), category)
        if sum(own.values()) == size:
            return own
    return {(name, category, ""): size}


def _highs(reader: _Cells) -> Iterator[tuple[str, Sizes]]:
    """Yield each category with its highest bytes within the iteration."""
    yield "activation", {("feature maps", "activation", ""): reader.high("feature_map_bytes", 4)}
    yield "gradient", _parts(reader, "gradient", reader.total(gradients=True))
    place = reader.columns.intermediate
    size = reader.high("intermediate_gradient_bytes", place)
    yield "activation_gradient", {(*PEAK_NAMES["activation_gradient"], ""): size}
    for category in ("optimizer_state", "buffer", "temporary"):
        yield category, {(*PEAK_NAMES[category], ""): reader.exact(f"{category}_bytes") or 0}


def _by_parameter(parts: list[tuple[str, int]], category: str) -> Sizes:
    return {(name, category, name.removesuffix("_grad").rpartition(".")[0]): size for name, size in parts}


def _some(sizes: Sizes) -> Sizes:
    return {quantity: size for quantity, size in sizes.items() if size}


def _number_of(cell: str) -> int:
    number = bytes_of(cell, 1)
    if number >= MAX_NUMBER:
        raise ValueError(f"epoch or iteration {number:,}")
    return number


def bytes_of(cell: str, unit: int) -> int:
    """Return a cell's bytes.

    Raises:
        ValueError: it is not a whole number, is negative, or more than any GPU has.
    """
    text = cell.strip()
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise ValueError("a column that is no whole number")
    size = int(text) * unit
    if not 0 <= size <= MAX_MB * MB:
        raise ValueError(f"a size of {size:,} bytes")
    return size
