"""The CSV of pytorch_mem_profiler, and of its replacement in gpuledger, which writes more columns.

Each row is an iteration and is converted to a step. Each quantity is converted to a block that is alive from the moment
at which it gets its value until that changes.
"""

from __future__ import annotations

import csv
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.overview.balance import STATED_POOL
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.errors import InputError
from gpuledger.formats.entries import (
    Entries,
    LoggedEntry,
    UnreadParts,
    begins_as,
    files_of,
    filled,
    label,
    maybe,
    read_each,
    whole_lines,
)
from gpuledger.formats.memory_csv_rows import FIRST, MB, Columns, IterationRow, Moment, Quantity, cells_of, parse_row
from gpuledger.formats.text_lines import decoded, shown
from gpuledger.model.imported import ImportedRank, ImportedRun, rows_to_table

if TYPE_CHECKING:
    import pyarrow as pa

I64 = NDArray[np.int64]

CPU = -1
FREE_SEGMENT_ADDRESS = 1 << 60
"""Start address of segments without a block. Blocks have no addresses and are all placed in one segment at 0."""
EPOCHS_NAMED = 12
OWN_PID, OTHER_PID = 0, 1


def looks_like(path: Path, head: bytes) -> bool:
    """Return whether a file starts with the columns of such a CSV, or a folder has such a file."""
    if path.is_dir():
        return any(file.is_file() and _is_ours(file) for file in path.iterdir())
    text = decoded(head[:512]).lstrip("\ufeff")
    return text.replace('"', "").replace(" ", "").startswith(",".join(FIRST))


def _is_ours(path: Path) -> bool:
    return begins_as(path, looks_like, 512)


def read_files(paths: tuple[Path, ...], name: str, options: Mapping[str, Any]) -> ImportedRun:
    """Return the files as one run, one rank per file.

    Raises:
        InputError: no file has a row.
    """
    unread = UnreadParts()

    def read_one(number: int, path: Path) -> ImportedRank:
        log = _MemoryLog(path, unread)
        log.read()
        return log.rank(number)

    ranks, read = read_each(files_of(paths, _is_ours), read_one, unread)
    if not ranks:
        raise InputError(next(iter(unread.texts()), f"{paths[0]}: no CSV file of pytorch_mem_profiler found"))
    return ImportedRun(name, "memory-csv", read, ranks, unread=unread.texts(), facts={"started_ns": None})


class _MemoryLog:
    """One file: the current bytes, the entries so far, and each row's values for the other tables."""

    def __init__(self, path: Path, unread: UnreadParts) -> None:
        self.entries = Entries(path.stat().st_size)
        self._path = path
        self._unread = unread
        self._held: dict[Quantity, tuple[int, tuple[int, int]]] = {}
        self._index = 0
        self._over_bytes = 0
        self._exact = False
        self._device_idx: int | None = None
        self._device_text = ""
        self._epoch, self._before_epoch, self._step = -1, 0, 0
        self._epochs: list[tuple[int, int]] = []
        self._steps, self._begins, self._ends = array("q"), array("q"), array("q")
        self._current, self._peak, self._sum = array("q"), array("q"), array("q")
        self._moment_ends, self._cached, self._free = array("q"), array("q"), array("q")
        self._card: list[Mapping[str, int | None]] = []

    def read(self) -> None:
        """Read every row.

        Raises:
            InputError: there is no header of this format, or no row after it.
        """
        lines = ((number, text) for number, text in whole_lines(self._path, self._unread) if text.strip())
        _, header = next(lines, (0, ""))
        columns = Columns.of(cells_of(header.lstrip("\ufeff")), self._path)
        self._exact = "allocated_bytes" in columns.exact
        waiting: deque[IterationRow] = deque()
        for number, text in lines:
            if text.strip() == header.strip():
                self._unread.add(f"{self._path.name}: line {number:,}: the header again; its rows follow as more steps")
                continue
            if text.startswith(",".join(FIRST)):
                rows = sum(1 for _ in lines)
                reason = f"a second table with other columns; its {rows:,} rows are not read"
                self._unread.add(f"{self._path.name}: line {number:,}: {reason}: {shown(text)}")
                break
            try:
                row = parse_row(columns, cells_of(text))
                self._choose_device(row)
                waiting.append(row)  # until a row shows the device
                if self._device_idx is not None:
                    self._add_all(waiting)
            except (ValueError, csv.Error) as error:
                self._unread.add(f"{self._path.name}: line {number:,}: {error}: {shown(text)}")
        if waiting:
            self._device_idx = CPU  # there is memory, but never a cache
        self._add_all(waiting)
        if not self._steps:
            raise InputError(f"{self._path}: no iteration in it")

    def _choose_device(self, row: IterationRow) -> None:
        """Set the device from its column, or from a cache, which only a GPU has. The first row with either counts."""
        if self._device_idx is not None:
            return
        if row.device:
            self._device_text = row.device
            first = row.device.split()[0]
            number = first.removeprefix("cuda:")
            if first != "cpu" and not (number.isdecimal() and len(number) < 5):
                raise ValueError(f"device {first!r}")
            self._device_idx = CPU if first == "cpu" else int(number)
        elif row.peak_cached_bytes or row.current_cached_bytes or self._exact:
            self._device_idx = 0

    def _add_all(self, rows: deque[IterationRow]) -> None:
        while rows:
            self._add(rows.popleft())

    def _add(self, row: IterationRow) -> None:
        """Add a row's moments, in order."""
        self._number(row)
        self._begins.append(self._index)
        for moment in row.moments:
            self._enter(moment)
        self._ends.append(self._index - 1)
        self._current.append(row.current_cached_bytes)
        self._peak.append(row.peak_cached_bytes)
        self._sum.append(row.moments[-1].held_bytes)
        self._over_bytes = max(self._over_bytes, row.over_bytes)
        self._card.append(row.card)

    def _number(self, row: IterationRow) -> None:
        """Set a row's step: its iteration, plus the iterations of earlier epochs."""
        if row.epoch != self._epoch:
            self._before_epoch = self._step
            self._epoch = row.epoch
            self._epochs.append((row.epoch, self._before_epoch))
        self._step = max(self._before_epoch + row.iteration, self._step + 1)
        self._steps.append(self._step)

    def _enter(self, moment: Moment) -> None:
        wanted = {quantity: (size, size) for quantity, size in moment.sizes.items()}
        if moment.rounding_bytes and wanted:
            largest = max(wanted, key=lambda quantity: wanted[quantity][0])
            wanted[largest] = (wanted[largest][0], wanted[largest][0] + moment.rounding_bytes)
        begin = self._index
        for quantity in [one for one, (_, sizes) in self._held.items() if wanted.get(one) != sizes]:
            self.entries.free(self._held.pop(quantity)[0], self._index)
            self._index += 1
        for quantity, sizes in wanted.items():
            if quantity not in self._held:
                name, category, module = quantity
                entry = LoggedEntry(
                    name, *sizes, category, module, self._device_idx or 0, step=self._step, alloc_index=self._index
                )
                self._held[quantity] = (self.entries.add(entry), sizes)
                self._index += 1
        self._index = max(self._index, begin + 1)  # every moment is an event, even if only the cache changed
        self._moment_ends.append(self._index - 1)
        self._cached.append(moment.cached_bytes)
        self._free.append(moment.free_segment_bytes)

    def rank(self, number: int) -> ImportedRank:
        """Return the data as rank ``number``."""
        device_idx = self._device_idx or 0
        ends, current, peak, held = (np.asarray(v) for v in (self._ends, self._current, self._peak, self._sum))
        steps, begins = np.asarray(self._steps), np.asarray(self._begins)
        reserved = device_idx != CPU and bool(self._exact or (current >= held).all())
        tables = self.entries.tables()
        moments, cached, free = (np.asarray(v) for v in (self._moment_ends, self._cached, self._free))
        if reserved:
            tables["segments"] = _segments(
                device_idx, moments, cached - free, free, "large" if self._exact else STATED_POOL
            )
        tables["counters"] = _counters(device_idx, steps, ends, current, peak, held)
        tables["steps"] = _steps(device_idx, steps, begins, ends)
        several = self._device_text.split()
        name = f"(sum of {', '.join(several)})" if len(several) > 1 else ""
        facts: dict[str, Any] = {"devices": [{"device_idx": device_idx, "name": name, "total_bytes": None}]}
        last = np.searchsorted(moments, ends)
        if device_idx != CPU:
            tables |= _card_tables(device_idx, self._card, cached[last], facts)
        return ImportedRank(number, tables, facts, (*self._notes(reserved), *self._epoch_notes()))

    def _notes(self, reserved: bool) -> list[str]:
        notes = ["A row is an iteration, kept as the step that allocated; it has no time, phase or order of events."]
        if self._exact:
            notes.append(
                "Beside the peak, a quantity's highest bytes are a moment of which no other quantity is known."
            )
        else:
            notes.append("Each size is a whole number of MB of 10^6 bytes.")
        if len(self._device_text.split()) > 1:
            notes.append(f"The sizes are sums over {', '.join(self._device_text.split())}.")
        elif not self._device_text and self._device_idx == CPU:
            notes.append("The file states no cache in any row, so its tensors were the CPU's.")
        elif not self._device_text:
            notes.append("The file does not name its GPU: it stands as cuda:0.")
        if not self._exact and any(self._current):
            notes.append(
                "Reserved memory is the cache size in the file. The part that no column explains counts as fragmented."
                if reserved
                else (
                    "The cache size in the file is smaller than the sum of its columns, so reserved memory is that sum."
                )
            )
        if self._over_bytes > 0:
            notes.append(f"Rounded up, a total's lines sum to up to {self._over_bytes // MB} MB more than it.")
        return notes

    def _epoch_notes(self) -> list[str]:
        """Return a note on the steps of each epoch, if there are several."""
        if len(self._epochs) < 2:
            return []
        words = [f"epoch {epoch} follows step {before}" for epoch, before in self._epochs[1:EPOCHS_NAMED]]
        more = len(self._epochs) - EPOCHS_NAMED
        rest = f", and {more:,} more epochs" if more > 0 else ""
        return [f"A step is an iteration, counted on from epoch to epoch: {', '.join(words)}{rest}."]


def _segments(device_idx: int, ends: I64, used: I64, free: I64, pool: str) -> pa.Table:
    """Return segments with blocks and segments without, one per distinct value.

    A moment starts at the event after the last one's end.
    """
    begins = np.concatenate(([0], ends[:-1] + 1))
    address, size, taken, until = [], [], [], []
    for place, values in ((0, used), (FREE_SEGMENT_ADDRESS, free)):
        changed = np.flatnonzero(np.diff(values, prepend=-1))
        kept = values[changed] > 0
        address.append(np.full(int(kept.sum()), place, dtype=np.int64))
        size.append(values[changed][kept])
        taken.append(begins[changed][kept])
        until.append(np.append(begins[changed[1:]], NEVER)[kept])
    count = sum(one.size for one in size)
    columns = {
        "device_idx": np.full(count, device_idx, dtype=np.int32),
        "address": np.concatenate(address),
        "bytes": np.concatenate(size),
        "pool": label(np.zeros(count, dtype=np.int8), (pool,)),
        "alloc_index": np.concatenate(taken),
        "free_index": maybe(np.concatenate(until), NEVER),
    }
    return filled("segments", columns, count)


def _steps(device_idx: int, steps: I64, begins: I64, ends: I64) -> pa.Table:
    """Return one step per row. Rows have no times, so start and end are 0."""
    columns = {
        "step": steps.astype(np.int32),
        "device_idx": np.full(steps.size, device_idx, dtype=np.int32),
        "kind": label(np.zeros(steps.size, dtype=np.int8), ("marked",)),
        "recorded": np.ones(steps.size, dtype=bool),
        "start_index": begins,
        "end_index": ends,
    }
    return filled("steps", columns, steps.size)


def _counters(device_idx: int, steps: I64, ends: I64, cached: I64, peak: I64, held: I64) -> pa.Table:
    """Return the cached bytes and their peak at the end of each row. Rows have no times, so they are numbered."""
    columns = {
        "t_ns": np.arange(1, ends.size + 1),
        "device_idx": np.full(ends.size, device_idx, dtype=np.int32),
        "step": steps.astype(np.int32),
        "reason": label(np.zeros(ends.size, dtype=np.int8), ("step_end",)),
        "event_index": ends,
        "alloc_count": ends + 1,
        "reserved_bytes": cached,
        "peak_reserved_bytes": peak,
        **dict.fromkeys(("allocated_bytes", "requested_bytes", "active_bytes", "peak_allocated_bytes"), held),
    }
    return filled("counters", columns, ends.size)


def _card_tables(
    device_idx: int, cards: Sequence[Mapping[str, int | None]], cached: I64, facts: dict[str, Any]
) -> dict[str, pa.Table]:
    """Return the GPU's bytes at each row's peak if the file has them; adds context and libraries to ``facts``."""
    samples, processes = [], []
    for number, (card, cached_bytes) in enumerate(zip(cards, cached.tolist(), strict=True), 1):
        if card["unaccounted"] is None:
            continue
        parts = ("context", "library", "unaccounted")
        own = cached_bytes + sum(card[name] or 0 for name in parts)
        others = card["other_processes"]
        place = {"t_ns": number, "device_idx": device_idx}
        samples.append({**place, "used_bytes": own + (others or 0), "driver_bytes": card["driver"]})
        if others is not None:
            processes += [{**place, "pid": OWN_PID, "bytes": own}, {**place, "pid": OTHER_PID, "bytes": others}]
        facts["pid"] = OWN_PID
        facts["libraries"] = {
            "context_bytes": card["context"],
            "library_bytes": card["library"],
            "source": "as the file states them",
        }
    if not samples:
        return {}
    return {
        "samples": rows_to_table("samples", samples),
        "process_samples": rows_to_table("process_samples", processes),
    }
