"""The CSV of pytorch_mem_profiler, and of the drop-in that writes the same columns and more.

A row is an iteration; its columns are quantities in whole MB of 10^6 bytes. A quantity becomes a block that lives from
the row in which it takes its value to the one in which it changes.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.replay import NEVER
from gpuledger.errors import InputError
from gpuledger.formats.entries import (
    Entries,
    Entry,
    Unread,
    begins_as,
    files_of,
    filled,
    label,
    maybe,
    read_each,
    whole_lines,
)
from gpuledger.formats.text_lines import decoded, shown
from gpuledger.model.imported import ImportedRank, ImportedRun

if TYPE_CHECKING:
    import pyarrow as pa

I64 = NDArray[np.int64]

MB = 1_000_000
FIRST = ("epoch", "iteration", "peak_cached", "current_cached", "total_feature_map_usage", "total_weight_usage")
GRADIENTS = "total_layer_weight_gradient_usage"
LAST = "intermediate_gradients"
EXACT = {"optimizer_state_bytes": "optimizer_state", "buffer_bytes": "buffer", "temporary_bytes": "temporary"}
"""Quantities that only the drop-in writes, in bytes, with their category."""
MAX_MB = 1 << 24
DEVICE = 0

Quantity = tuple[str, str, str]
"""Name, category and module of one entry."""


def looks_like(path: Path, head: bytes) -> bool:
    """Return whether a file begins with the columns of such a CSV, or a folder has one."""
    if path.is_dir():
        return any(file.is_file() and _is_ours(file) for file in path.iterdir())
    text = decoded(head[:512]).lstrip("\ufeff")
    return text.replace('"', "").replace(" ", "").startswith(",".join(FIRST))


def _is_ours(path: Path) -> bool:
    return begins_as(path, looks_like, 512)


def read_files(paths: tuple[Path, ...], name: str, options: Mapping[str, Any]) -> ImportedRun:
    """Return the files as one run, a rank for each.

    Raises:
        InputError: no file has a row.
    """
    unread = Unread()

    def read_one(number: int, path: Path) -> ImportedRank:
        log = _MemoryLog(path, unread)
        log.read()
        return log.rank(number)

    ranks, read = read_each(files_of(paths, _is_ours), read_one, unread)
    if not ranks:
        raise InputError(next(iter(unread.texts()), f"{paths[0]}: no CSV file of pytorch_mem_profiler found"))
    return ImportedRun(name, "memory-csv", read, ranks, unread=unread.texts(), facts={"started_ns": None})


@dataclass(frozen=True)
class _Columns:
    """Where the quantities stand. ``exact`` are positions of columns in bytes, for parameters and their gradients."""

    count: int
    weights: tuple[tuple[str, int], ...]
    gradients_total: int
    gradients: tuple[tuple[str, int], ...]
    intermediate: int
    exact: dict[str, int]

    @classmethod
    def of(cls, names: list[str], path: Path) -> _Columns:
        """Return the columns that a header names.

        Raises:
            InputError: it is not the header of such a file.
        """
        plain = [name.strip() for name in names]
        if tuple(plain[: len(FIRST)]) != FIRST or GRADIENTS not in plain or LAST not in plain:
            raise InputError(f"{path}: not a CSV of pytorch_mem_profiler: its header has other columns")
        middle, last = plain.index(GRADIENTS), plain.index(LAST)
        if last < middle:
            raise InputError(f"{path}: not a CSV of pytorch_mem_profiler: its columns have another order")
        return cls(
            count=len(plain),
            weights=tuple((plain[at], at) for at in range(len(FIRST), middle)),
            gradients_total=middle,
            gradients=tuple((plain[at], at) for at in range(middle + 1, last)),
            intermediate=last,
            exact={name: at for at, name in enumerate(plain) if at > last and name.endswith("_bytes")},
        )


class _MemoryLog:
    """One file: what is held now, and the entries so far."""

    def __init__(self, path: Path, unread: Unread) -> None:
        self.entries = Entries(path.stat().st_size)
        self._path = path
        self._unread = unread
        self._held: dict[Quantity, tuple[int, int]] = {}
        self._index = 0
        self._row = 0
        self._over_mb = 0
        self._ends, self._current, self._peak, self._sum = array("q"), array("q"), array("q"), array("q")

    def read(self) -> None:
        """Read every row.

        Raises:
            InputError: there is no header of this kind, or no row after it.
        """
        lines = ((number, text) for number, text in whole_lines(self._path, self._unread) if text.strip())
        _, header = next(lines, (0, ""))
        columns = _Columns.of(_cells(header.lstrip("\ufeff")), self._path)
        for number, text in lines:
            try:
                self._read_row(columns, _cells(text))
            except (ValueError, csv.Error) as error:
                self._unread.add(f"{self._path.name}: line {number:,}: {error}: {shown(text)}")
        if not self._row:
            raise InputError(f"{self._path}: the file has no iterations")

    def _read_row(self, columns: _Columns, cells: list[str]) -> None:
        if len(cells) < min(columns.count, columns.intermediate + 1):
            raise ValueError(f"{len(cells)} columns, expected {columns.count}")
        peak, current = (_bytes_of(cells[at], MB) for at in (2, 3))
        wanted = {quantity: size for quantity, size in self._quantities(columns, cells) if size}
        self._row += 1
        begin = self._index
        for quantity in [one for one, (_, size) in self._held.items() if wanted.get(one) != size]:
            row, _ = self._held.pop(quantity)
            self.entries.free(row, self._index)
            self._index += 1
        for quantity, size in wanted.items():
            if quantity not in self._held:
                name, category, module = quantity
                entry = Entry(name, size, None, category, module, step=self._row, alloc_index=self._index)
                row = self.entries.add(entry)
                self._held[quantity] = (row, size)
                self._index += 1
        self._index = max(self._index, begin + 1)  # a row is an event of its own, also where only the cache changed
        self._ends.append(self._index - 1)
        self._current.append(current)
        self._peak.append(peak)
        self._sum.append(sum(wanted.values()))

    def _quantities(self, columns: _Columns, cells: list[str]) -> Iterator[tuple[Quantity, int]]:
        yield ("feature maps", "activation", ""), _bytes_of(cells[4], MB)
        yield from self._section(columns, cells, columns.weights, 5, "weight")
        yield from self._section(columns, cells, columns.gradients, columns.gradients_total, "gradient")
        yield ("intermediate gradients", "activation_gradient", ""), _bytes_of(cells[columns.intermediate], MB)
        for name, category in EXACT.items():
            place = columns.exact.get(name)
            if place is not None and place < len(cells) and cells[place].strip():
                yield (name.removesuffix("_bytes").replace("_", " "), category, ""), _bytes_of(cells[place], 1)

    def _section(
        self, columns: _Columns, cells: list[str], parts: tuple[tuple[str, int], ...], total_at: int, category: str
    ) -> Iterator[tuple[Quantity, int]]:
        """Yield the parameters' own lines, and what the stated total has beyond their rounded sum."""
        sizes, exact = 0, False
        for name, place in parts:
            place_exact = columns.exact.get(f"{name}_bytes", len(cells))
            exact = place_exact < len(cells)
            size = _bytes_of(cells[place_exact], 1) if exact else _bytes_of(cells[place], MB)
            sizes += size
            yield (name, category, name.removesuffix("_grad").rpartition(".")[0]), size
        rest = _bytes_of(cells[total_at], MB) - sizes
        if not exact and rest > 0:
            yield (f"{category}s below a line's rounding", category, ""), rest
        elif not exact:
            self._over_mb = max(self._over_mb, -rest // MB)

    def rank(self, number: int) -> ImportedRank:
        """Return what was read as rank ``number``."""
        ends, current, peak, held = (np.asarray(v) for v in (self._ends, self._current, self._peak, self._sum))
        reserved = bool((current >= held).all())
        tables = self.entries.tables()
        if reserved:
            tables["segments"] = _segments(ends, current)
        tables["counters"] = _counters(ends, current, peak, held)
        notes = [
            "Each row is an iteration, imported as a step. The file has no times, phases or order of events.",
            "Sizes are whole MB of 10^6 bytes.",
        ]
        if current.any():
            notes.append(
                "Reserved memory is the cache size in the file. The part that no column explains counts as fragmented."
                if reserved
                else (
                    "The cache size in the file is smaller than the sum of its columns, so reserved memory is that sum."
                )
            )
        if self._over_mb:
            notes.append(
                f"Sizes in the file are rounded up, so rows sum to up to {self._over_mb} MB more than their total."
            )
        facts = {"devices": [{"device_idx": DEVICE, "name": "", "total_bytes": None}]}
        return ImportedRank(number, tables, facts, tuple(notes))


def _segments(ends: I64, cached: I64) -> pa.Table:
    """Return the cache as one segment for each value it takes; a row begins with the event after the last one's end."""
    begins = np.concatenate(([0], ends[:-1] + 1))
    changed = np.flatnonzero(np.diff(cached, prepend=-1))
    until = np.append(begins[changed[1:]], NEVER)
    kept = cached[changed] > 0
    columns = {
        "device_idx": np.full(int(kept.sum()), DEVICE, dtype=np.int32),
        "bytes": cached[changed][kept],
        "pool": label(np.zeros(int(kept.sum()), dtype=np.int8), ("large",)),
        "alloc_index": begins[changed][kept],
        "free_index": maybe(until[kept], NEVER),
    }
    return filled("segments", columns, int(kept.sum()))


def _counters(ends: I64, cached: I64, peak: I64, held: I64) -> pa.Table:
    """Return the cache, now and at its peak, at the end of each row; rows have no time, so they are numbered."""
    numbers = np.arange(1, ends.size + 1)
    columns = {
        "t_ns": numbers,
        "device_idx": np.full(ends.size, DEVICE, dtype=np.int32),
        "step": numbers.astype(np.int32),
        "reason": label(np.zeros(ends.size, dtype=np.int8), ("step_end",)),
        "event_index": ends,
        "alloc_count": ends + 1,
        "reserved_bytes": cached,
        "peak_reserved_bytes": peak,
        **dict.fromkeys(("allocated_bytes", "requested_bytes", "active_bytes", "peak_allocated_bytes"), held),
    }
    return filled("counters", columns, ends.size)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return line.split(",")


def _bytes_of(cell: str, unit: int) -> int:
    """Return a cell's bytes.

    Raises:
        ValueError: it is no whole number, is negative, or more than any GPU has.
    """
    text = cell.strip()
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise ValueError("a column is not a whole number")
    size = int(text) * unit
    if not 0 <= size <= MAX_MB * MB:
        raise ValueError(f"{size:,} bytes is out of range")
    return size
