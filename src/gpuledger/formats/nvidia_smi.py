"""Logs of ``nvidia-smi --query-gpu=… --format=csv[,noheader][,nounits]``, with or without times.

The oldest have one column, ``memory.used [MiB]``, and neither time nor GPU: ``memory_<name>.txt``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpuledger.cards.smi_cells import (
    FIELDS,
    UNKNOWN,
    Field,
    cells_of,
    fields_of_header,
    guess_fields,
    is_header,
    parse_cell,
    separator_of,
)
from gpuledger.errors import InputError, UsageError
from gpuledger.formats.text_lines import TextLine, decoded, read_lines, shown
from gpuledger.model.imported import ImportedRank, ImportedRun
from gpuledger.model.schema.tables import SAMPLES
from gpuledger.units import parse_duration_ns

DEFAULT_INTERVAL = "10ms"
MAX_CARDS = 256
"""Maximum number of GPUs in a log; each has its own columns in memory. A host has up to 16."""
MAX_UNREAD = 100
_SAMPLE_COLUMNS = frozenset(SAMPLES.column_names) - {"t_ns", "device_idx"}
_FACTS = frozenset({"index", "uuid", "name", "driver_version", "total_bytes"})


_CARD_KEYS = ("index", "uuid", "bus_id", "serial")
"""Columns that identify a GPU; the first one that a row has is used. Without any, see :func:`_distinguished`."""
MAX_IN_TURN = 16
FEWEST_TURNS = 3
"""Minimum number of rounds of all GPUs that shows that rows come in rounds."""
ROUND_FACTOR = 4
"""Minimum ratio of the time between two rounds to the time within one."""


def looks_like(path: Path, head: bytes) -> bool:
    """Return whether the first line with content has columns of nvidia-smi, by name or by unit."""
    if path.is_dir():
        return False
    first = next((line for line in decoded(head).splitlines() if line.strip()), "")
    if is_header(first):
        return any(field.kind != UNKNOWN for field in fields_of_header(first))
    fields = guess_fields(cells_of(first, separator_of(first)))
    return any(field.has_unit for field in fields) and all(field.kind != UNKNOWN for field in fields)


def read_files(paths: tuple[Path, ...], name: str, options: dict[str, Any]) -> ImportedRun:
    """Return the samples of the files, one rank per file.

    Options: ``interval`` is the time between samples if there are no times, ``columns`` are the names of the columns if
    there is no header.

    Raises:
        InputError: no file has a sample.
        UsageError: an option is not valid.
    """
    interval_ns = parse_duration_ns(options.get("interval", DEFAULT_INTERVAL))
    if not interval_ns:
        raise UsageError(f"--interval {options['interval']}: must be longer than 0", hint="For example --interval 10ms")
    asked = _asked_fields(options.get("columns"))
    ranks: list[ImportedRank] = []
    unread: list[str] = []
    for path in paths:
        log = _Log(path, asked)
        try:
            ranks.append(log.rank(len(ranks), interval_ns))
        except InputError as error:
            unread.append(error.message)
        unread += log.unread_lines()
    if not ranks:
        raise InputError(unread[0])
    return ImportedRun(name, "nvidia-smi", tuple(str(path) for path in paths), tuple(ranks), unread=tuple(unread))


def _asked_fields(columns: str | None) -> tuple[Field, ...] | None:
    if columns is None:
        return None
    names = [name.strip() for name in columns.split(",")]
    if not any(name in FIELDS for name in names):
        raise UsageError(
            f"--columns {columns}: gpuledger imports none of these columns",
            hint="For example --columns timestamp,memory.used",
        )
    return tuple(Field.named(name) for name in names)


class _Log:
    """One file while it is read: its columns so far, and a table for each GPU in it."""

    def __init__(self, path: Path, asked: tuple[Field, ...] | None) -> None:
        self._path = path
        self._asked = asked
        self._fields: tuple[Field, ...] = asked or ()
        self._separator = ""
        self._cards: dict[str, _Card] = {}
        self._unread: list[str] = []
        self._unread_count = 0
        self._last: TextLine | None = None
        self._notes: dict[str, None] = {}

    def rank(self, number: int, interval_ns: int) -> ImportedRank:
        """Return the samples of the file as rank ``number``.

        Raises:
            InputError: it has no sample.
        """
        import pyarrow as pa

        for line in read_lines(self._path):
            self._last = line
            problem = self._take(line)
            if problem:
                self._unread_count += 1
                if len(self._unread) < MAX_UNREAD:
                    self._unread.append(f"{self._path}: line {line.number}: {problem}")
        if not self._cards:
            raise InputError(f"{self._path}: {self._why_nothing()}")
        if not any(card.has_figures for card in self._cards.values()):
            raise InputError(
                f"{self._path}: gpuledger imports none of its columns",
                hint="Write the log with nvidia-smi --query-gpu=timestamp,memory.used --format=csv",
            )
        cards = _numbered(self._apart())
        tables = [card.table(device_idx, interval_ns) for device_idx, card in cards]
        return ImportedRank(
            number,
            {"samples": pa.concat_tables(tables)},
            {"devices": [card.device(device_idx) for device_idx, card in cards]},
            (*self._notes, *self._time_notes(interval_ns)),
        )

    def _apart(self) -> dict[str, _Card]:
        """Return the GPUs. If no column names them, they are found by model, capacity and order of the rows.

        Raises:
            InputError: there are rows of several GPUs that cannot be distinguished.
        """
        if list(self._cards) != [""]:
            return self._cards
        found = _distinguished(self._cards[""])
        if not found:
            raise InputError(
                f"{self._path}: several rows have the same time, and no column names the GPU",
                hint="Record the index, too: nvidia-smi --query-gpu=timestamp,index,memory.used",
            )
        if len(found) > 1:
            self._notes[f"No column names the GPU of a row: {len(found)} GPUs were found by {found[0].apart_by}."] = (
                None
            )
        return {str(number): card for number, card in enumerate(found)}

    def unread_lines(self) -> list[str]:
        """Return the lines that could not be read, with reasons; if there are very many, only the first ones."""
        rest = self._unread_count - len(self._unread)
        return [*self._unread, f"{self._path}: … and {rest:,} more lines"] if rest else self._unread

    def _why_nothing(self) -> str:
        if self._last is None:
            return "empty"
        return f"no valid nvidia-smi rows found{'' if self._unread_count else ' (the file has only a header)'}"

    def _take(self, line: TextLine) -> str:
        """Parse one line; return why it could not be read, or ""."""
        if line.had_nul:
            self._notes["NUL bytes in the file were skipped."] = None
        if not line.text.strip():
            return ""
        if is_header(line.text):
            if self._asked is None:
                self._begin(fields_of_header(line.text), line.text)
            return ""
        if not self._fields:
            cells = cells_of(line.text, separator_of(line.text))
            fields = guess_fields(cells)
            if not any(field.kind in _SAMPLE_COLUMNS for field in fields):
                return f"{shown(line.text)}: neither a header nor a row of values"
            self._notes[_guessed_note(fields)] = None
            self._begin(fields, line.text)
        self._separator = self._separator or separator_of(line.text)
        return self._take_cells(line)

    def _begin(self, fields: tuple[Field, ...], text: str) -> None:
        self._fields, self._separator = fields, separator_of(text)
        lost = [field.name for field in fields if field.kind == UNKNOWN and field.name]
        if lost:
            self._notes[f"These columns were not imported: {', '.join(lost)}."] = None
        if any(field.name == "power.draw" for field in fields):
            self._notes[
                "power.draw is the mean of one second on Ampere and later GPUs, and the "
                "power of an instant on older ones."
            ] = None

    def _take_cells(self, line: TextLine) -> str:
        cells = cells_of(line.text, self._separator) if len(self._fields) > 1 else [line.text.strip()]
        cut = "cut off: " if not line.ended else ""
        if len(cells) != len(self._fields):
            return f"{cut}{shown(line.text)}: {len(cells)} columns, expected {len(self._fields)}"
        values: dict[str, Any] = {}
        for field, cell in zip(self._fields, cells, strict=True):
            try:
                values[field.kind] = parse_cell(field, cell)
            except ValueError:
                return f"{cut}{shown(cell)}: not a value of {field.name or 'its column'}"
        if not line.ended and _may_be_cut(cells[-1], self._fields[-1]):
            return f"cut off: {shown(line.text)}: its last value may be incomplete"
        return self._add(values)

    def _add(self, values: dict[str, Any]) -> str:
        """Add one sample to its GPU. A sample without any value is left out."""
        if values.get("used_bytes") is None and values.get("free_bytes") is not None and values.get("total_bytes"):
            values["used_bytes"] = values["total_bytes"] - values["free_bytes"] - (values.get("driver_bytes") or 0)
            self._notes["The file has no memory.used, so it was computed as memory.total - memory.free."] = None
        key = str(next((values[kind] for kind in _CARD_KEYS if values.get(kind) is not None), ""))
        if key not in self._cards and len(self._cards) >= MAX_CARDS:
            return f"GPU {shown(key)}: more than {MAX_CARDS:,} GPUs in one file"
        self._cards.setdefault(key, _Card()).add(values)
        return ""

    def _time_notes(self, interval_ns: int) -> Iterator[str]:
        if any(card.untimed for card in self._cards.values()):
            yield (
                f"The file has no times, so samples are {interval_ns / 1e6:g} ms apart. "
                "Set another interval with gpuledger import nvidia-smi --interval."
            )
        else:
            yield "The file's times have no time zone and are imported as UTC."
        if any(card.turned_back for card in self._cards.values()):
            yield "Times in the file go backwards, so the samples were sorted by time."


class _Card:
    """The samples of one GPU, column by column."""

    def __init__(self) -> None:
        self._times: list[int | None] = []
        self._columns: dict[str, list[Any]] = {}
        self._facts: dict[str, Any] = {}
        self._labels: list[str] = []
        self._models: dict[str, dict[str, Any]] = {}
        self.apart_by = ""

    def add(self, values: dict[str, Any]) -> None:
        """Add one sample. A column that starts later is null before."""
        for name, value in values.items():
            if name in _SAMPLE_COLUMNS:
                column = self._columns.setdefault(name, [])
                column += [None] * (len(self._times) - len(column))
                column.append(value)
            if name in _FACTS and value is not None:
                self._facts[name] = value
        self._times.append(values.get("t_ns"))
        model = [values.get(name) for name in ("name", "total_bytes")]
        self._labels.append("" if model == [None, None] else str(model))
        if self._labels[-1] not in self._models:
            self._models[self._labels[-1]] = {name: values[name] for name in _FACTS if values.get(name) is not None}

    @property
    def labels(self) -> list[str]:
        """Return model and capacity of each sample's GPU as one text, "" if it has neither."""
        return self._labels

    @property
    def times(self) -> list[int | None]:
        """Return the times of the samples."""
        return self._times

    def only(self, rows: list[int], apart_by: str) -> _Card:
        """Return the samples in ``rows`` as one GPU of several."""
        part = _Card()
        part.apart_by = apart_by
        part._times = [self._times[row] for row in rows]
        part._labels = [self._labels[row] for row in rows]
        part._columns = {
            name: [column[row] if row < len(column) else None for row in rows] for name, column in self._columns.items()
        }
        part._facts = {**self._facts, **self._models.get(part._labels[0], {})}
        return part

    @property
    def has_figures(self) -> bool:
        """Return whether a sample has a column that a run stores."""
        return bool(self._columns)

    @property
    def untimed(self) -> bool:
        """Return whether a sample has no time."""
        return None in self._times

    @property
    def turned_back(self) -> bool:
        """Return whether a sample is older than the one before it."""
        times = [t_ns for t_ns in self._times if t_ns is not None]
        return not self.untimed and any(later < earlier for earlier, later in pairwise(times))

    @property
    def index(self) -> int | None:
        """Return the GPU's index in nvidia-smi."""
        index: int | None = self._facts.get("index")
        return index

    def device(self, device_idx: int) -> dict[str, Any]:
        """Return the GPU's entry in the rank's manifest."""
        kept = {key: value for key, value in self._facts.items() if key != "index"}
        return {"name": "unknown GPU", **kept, "device_idx": device_idx}

    def table(self, device_idx: int, interval_ns: int) -> Any:
        """Return the GPU's rows of ``samples`` ordered by time; without times they are ``interval_ns`` apart."""
        import pyarrow as pa

        count = len(self._times)
        times = [number * interval_ns for number in range(count)] if self.untimed else self._times
        columns = {"t_ns": times, "device_idx": [device_idx] * count, **self._columns}
        schema = SAMPLES.arrow_schema()
        padded = (columns.get(name, []) for name in schema.names)
        whole = [column + [None] * (count - len(column)) for column in padded]
        arrays = [pa.array(column, field.type) for column, field in zip(whole, schema, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=schema)
        return table.sort_by("t_ns") if self.turned_back else table


def _distinguished(card: _Card) -> list[_Card]:
    """Return the GPUs of rows that identify none; empty if there are several that cannot be distinguished.

    Rows of different models or capacities are of different GPUs. If rows with times come in rounds, close together
    within a round and far apart between rounds, each round has one row per GPU in the same order.
    """
    groups: dict[str, list[int]] = {}
    for row, label in enumerate(card.labels):
        groups.setdefault(label, []).append(row)
    models = [rows for label, rows in groups.items() if label]
    if len(models) < 2 or "" in groups or len(models) > MAX_IN_TURN:
        models = [list(range(len(card.labels)))]
    by_model = "their model or capacity" if len(models) > 1 else ""
    found: list[_Card] = []
    for rows in models:
        times = [t_ns for row in rows if (t_ns := card.times[row]) is not None]
        count = _in_turn(times) if len(times) == len(rows) else 1
        if count == 0:
            return []
        by = by_model or "the order of the rows of each moment"
        found += [card.only(rows[place::count], by) for place in range(count)]
    return found


def _in_turn(times_ns: list[int]) -> int:
    """Return the number of GPUs that alternate in rows with these times; 1 if none do, 0 if unknown."""
    gaps = [later - earlier for earlier, later in pairwise(times_ns)]
    for count in range(2, min(MAX_IN_TURN, len(times_ns) // FEWEST_TURNS) + 1):
        inside = [gap for place, gap in enumerate(gaps) if (place + 1) % count]
        between = gaps[count - 1 :: count]
        if min(inside) >= 0 and max(inside) * ROUND_FACTOR < min(between):
            return count
    together = sum(gap == 0 for gap in gaps)
    return 0 if gaps and 2 * together >= len(gaps) else 1


def _numbered(cards: dict[str, _Card]) -> list[tuple[int, _Card]]:
    """Return the GPUs with their indices: nvidia-smi's if all are different, otherwise the order in the file."""
    indices = [card.index for card in cards.values()]
    if None in indices or len(set(indices)) < len(indices):
        return list(enumerate(cards.values()))
    return sorted(((card.index or 0, card) for card in cards.values()), key=lambda pair: pair[0])


def _guessed_note(fields: tuple[Field, ...]) -> str:
    taken = ", ".join(field.name or "(skipped)" for field in fields)
    return f"The file has no header: its columns were read as {taken}. Name them with --columns."


def _may_be_cut(cell: str, field: Field) -> bool:
    """Return whether a value at the end of a file may be cut off: it is a number without its unit."""
    return cell[-1:].isdigit() and field.kind != "t_ns"
