"""Entries of older logs: a name and its bytes, mostly without times and without frees. They are converted to blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpuledger.errors import InputError
from gpuledger.files.reading import storable
from gpuledger.formats.snapshot.snapshot_tables import Modules
from gpuledger.formats.text_lines import read_lines
from gpuledger.model.accounts import CATEGORIES
from gpuledger.model.bounds import LARGEST_REQUEST_BYTES
from gpuledger.model.imported import rows_to_table
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

    from gpuledger.model.imported import ImportedRank

MAX_TOTAL_BYTES = 1 << 61
MAX_LINE_CHARACTERS = 4 << 20
"""Longer lines are skipped, with a note. A tag of 1 MiB fits."""
FEWEST_ENTRIES = 150_000
BYTES_PER_ENTRY = 6
"""A file can have :data:`FEWEST_ENTRIES`, plus one entry per this many bytes. An entry takes 50 bytes in memory."""
MAX_KNOWN = 1 << 16
MAX_NAMED = 20
"""Maximum number of unreadable lines with their own note; further ones are counted."""
UNKNOWN_PHASE = ""


class UnreadParts:
    """Parts of files that could not be read, with place and reason. The first are stored, the others are counted."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._more = 0

    def add(self, what: str) -> None:
        """Add a part that could not be read."""
        if len(self._kept) < MAX_NAMED:
            self._kept.append(what)
        else:
            self._more += 1

    def __bool__(self) -> bool:
        return bool(self._kept)

    def texts(self) -> tuple[str, ...]:
        """Return the stored parts, and the number of further ones."""
        return (*self._kept, f"and {self._more:,} more") if self._more else tuple(self._kept)


class Names:
    """Names as one text with end positions. The first :data:`MAX_KNOWN` are stored once each, later ones every time."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._text = bytearray()
        self._ends = array("q", [0])

    def number(self, name: str) -> int:
        """Return the number of a name."""
        known = self._known.get(name)
        if known is None:
            known = len(self._ends) - 1
            self._text += name.encode()
            self._ends.append(len(self._text))
            if known < MAX_KNOWN:
                self._known[name] = known
        return known

    def table(self) -> pa.Table:
        """Return the table ``names``."""
        import pyarrow as pa

        count = len(self._ends) - 1
        ends, text = pa.py_buffer(self._ends), pa.py_buffer(self._text)
        names = pa.Array.from_buffers(pa.large_string(), count, [None, ends, text]).cast(pa.string())
        return pa.table([np.arange(count), names], schema=TABLES["names"].arrow_schema())


class LoggedEntry(NamedTuple):
    """One entry. ``alloc_index`` None selects the next event number; -1 means allocated before the log."""

    name: str
    requested_bytes: int
    allocated_bytes: int | None = None
    category: str = "other"
    module: str = ""
    device_idx: int = 0
    step: int = 0
    alloc_index: int | None = -1
    time_ns: int | None = None
    stack_id: int = -1


class Entries:
    """The entries of one file, in order. Ids, indices and times are -1 if unknown."""

    def __init__(self, file_bytes: int) -> None:
        self.count = 0
        self._room = FEWEST_ENTRIES + file_bytes // BYTES_PER_ENTRY
        self.total_bytes = 0
        self._modules = Modules()
        self._names = Names()
        self._name_id, self._module_id = array("i"), array("i")
        self._requested, self._allocated = array("q"), array("q")
        self._device_idx, self._step, self._category = array("i"), array("i"), array("b")
        self._alloc_index, self._freed, self._time_ns = array("q"), array("q"), array("q")
        self._stack_id = array("i")

    def add(self, entry: LoggedEntry) -> int:
        """Add an entry, and return its row.

        Raises:
            ValueError: the bytes are negative or more than any GPU has, or there are too many entries.
        """
        if self.count >= self._room:
            raise ValueError("the file has too many entries for its size")
        requested = entry.requested_bytes
        allocated = requested if entry.allocated_bytes is None else entry.allocated_bytes
        if not 0 <= requested <= allocated <= LARGEST_REQUEST_BYTES:
            raise ValueError(f"impossible sizes: {requested:,} bytes requested, {allocated:,} bytes allocated")
        if self.total_bytes + allocated > MAX_TOTAL_BYTES:
            raise ValueError("the total is larger than the memory of any GPU")
        row = self.count
        self.count += 1
        self.total_bytes += allocated
        self._name_id.append(self._names.number(storable(entry.name)) if entry.name else -1)
        self._module_id.append(self._modules.number(entry.module))
        self._requested.append(requested)
        self._allocated.append(allocated)
        self._device_idx.append(entry.device_idx)
        self._step.append(entry.step)
        self._category.append(CATEGORIES.index(entry.category))
        self._alloc_index.append(row if entry.alloc_index is None else entry.alloc_index)
        self._freed.append(-1)
        self._time_ns.append(-1 if entry.time_ns is None else entry.time_ns)
        self._stack_id.append(entry.stack_id)
        return row

    def free(self, row: int, index: int) -> None:
        """Record that an entry was freed at an event index."""
        self._freed[row] = index

    def bytes_by_device(self) -> dict[int, int]:
        """Return the bytes of the entries that were not freed, by device."""
        devices, allocated = np.asarray(self._device_idx), np.asarray(self._allocated)
        live = np.asarray(self._freed) < 0
        return {int(device): int(allocated[live & (devices == device)].sum()) for device in np.unique(devices)}

    def tables(self) -> dict[str, pa.Table]:
        """Return the tables ``blocks``, ``modules`` and ``names``."""
        return {"blocks": self._blocks(), "modules": self._modules.table(), "names": self._names.table()}

    def _blocks(self) -> pa.Table:
        import pyarrow as pa

        columns: dict[str, Any] = {
            "device_idx": pa.array(np.asarray(self._device_idx)),
            "requested_bytes": pa.array(np.asarray(self._requested)),
            "allocated_bytes": pa.array(np.asarray(self._allocated)),
            "alloc_index": pa.array(np.asarray(self._alloc_index)),
            "step": pa.array(np.asarray(self._step)),
            "phase": label(np.zeros(self.count, dtype=np.int8), (UNKNOWN_PHASE,)),
            "category": label(np.asarray(self._category), CATEGORIES),
            "module_id": maybe(np.asarray(self._module_id), -1),
            "name_id": maybe(np.asarray(self._name_id), -1),
            "stack_id": maybe(np.asarray(self._stack_id), -1),
        }
        freed, times = np.asarray(self._freed), np.asarray(self._time_ns)
        if (freed >= 0).any():
            columns["free_requested_index"] = columns["free_index"] = maybe(freed, -1)
        if (times >= 0).any():
            columns["alloc_ns"] = maybe(times, -1)
        return filled("blocks", columns, self.count)


def files_of(paths: tuple[Path, ...], wanted: Callable[[Path], bool]) -> tuple[Path, ...]:
    """Return the given files, and the files in the given folders for which ``wanted(path)`` is True."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [file for file in inside if not path.is_dir() or (file.is_file() and wanted(file))]
    return tuple(found)


def read_each(
    files: Iterable[Path], read_one: Callable[[int, Path], ImportedRank | None], unread: UnreadParts
) -> tuple[tuple[ImportedRank, ...], tuple[str, ...]]:
    """Return a rank for each file that ``read_one(number, path)`` can read, and the paths of these files."""
    ranks: list[ImportedRank] = []
    read = []
    for path in files:
        try:
            rank = read_one(len(ranks), path)
        except (InputError, OSError) as error:
            unread.add(str(error))
            continue
        if rank is not None:
            ranks.append(rank)
            read.append(str(path))
    return tuple(ranks), tuple(read)


def begins_as(path: Path, looks_like: Callable[[Path, bytes], bool], head_bytes: int) -> bool:
    """Return whether ``looks_like`` accepts the first bytes of a file; False if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return looks_like(path, file.read(head_bytes))
    except OSError:
        return False


def whole_lines(path: Path, unread: UnreadParts) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, joined from its pieces. A line that is too long is skipped with a note."""
    pieces: list[str] = []
    number, size, lost = 1, 0, False
    for line in read_lines(path):
        size += len(line.text)
        if size > MAX_LINE_CHARACTERS:
            lost = True
            pieces.clear()
        if not lost:
            pieces.append(line.text)
        if not line.ended:
            continue
        if lost:
            unread.add(f"{path.name}: line {number:,}: longer than {MAX_LINE_CHARACTERS:,} characters")
        else:
            yield number, "".join(pieces)
        pieces.clear()
        number, size, lost = number + 1, 0, False
    if lost:
        unread.add(f"{path.name}: line {number:,}: longer than {MAX_LINE_CHARACTERS:,} characters")
    elif pieces:
        yield number, "".join(pieces)


def one_reading(
    entries: Entries, device_idx: int, used_bytes: int, *, pid: int | None = None, event_index: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Return rows of samples, process samples and counters: the memory in use when the log was written.

    Args:
        entries: The entries of the log.
        device_idx: Device.
        used_bytes: Bytes in use: by process ``pid`` as reported by the driver, or on the whole GPU if it is None.
        pid: Process, or None.
        event_index: Index of the last event before the sample.
    """
    allocated = entries.bytes_by_device().get(device_idx, 0)
    counter = {
        "t_ns": 0,
        "device_idx": device_idx,
        "step": 0,
        "reason": "close",
        "event_index": event_index,
        "alloc_count": entries.count,
        "free_count": 0,
        "allocated_bytes": allocated,
        "requested_bytes": allocated,
        "active_bytes": allocated,
        "reserved_bytes": allocated,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": allocated,
    }
    own = {"t_ns": 0, "device_idx": device_idx, "pid": pid, "bytes": used_bytes}
    return {
        "samples": [{"t_ns": 0, "device_idx": device_idx, "used_bytes": used_bytes}],
        "process_samples": [] if pid is None else [own],
        "counters": [counter],
    }


def reading_tables(readings: list[dict[str, list[dict[str, Any]]]]) -> dict[str, pa.Table]:
    """Return the tables of these samples."""
    names = ("samples", "process_samples", "counters")
    return {name: rows_to_table(name, [row for reading in readings for row in reading[name]]) for name in names}


def label(codes: Any, words: tuple[str, ...]) -> pa.Array:
    """Return a label column from positions in ``words``."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words, pa.string()))


def maybe(values: Any, missing: int) -> pa.Array:
    """Return a column that is null for values equal to ``missing``."""
    import pyarrow as pa

    return pa.array(values, mask=values == missing)


def filled(name: str, columns: dict[str, Any], count: int) -> pa.Table:
    """Return a table of ``count`` rows. Columns that are not given share one buffer, of nulls if nullable, or of 0."""
    import pyarrow as pa

    zeros, nothing = pa.py_buffer(bytes(8 * count)), pa.py_buffer(bytes(-(-count // 8)))
    schema = TABLES[name].arrow_schema()
    given = [
        columns[field.name]
        if field.name in columns
        else pa.Array.from_buffers(field.type, count, [nothing if field.nullable else None, zeros])
        for field in schema
    ]
    return pa.table(given, schema=schema)
