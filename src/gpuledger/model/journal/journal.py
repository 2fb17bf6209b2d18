"""The journal: the raw events that the recorded process writes while it runs.

A journal is a directory of numbered parts. A part is either one ``.npz`` (arrays only, never a pickle), written under a
temporary name and renamed, or a file that grows with each step (:mod:`.log`). So a killed process loses at most its
last step. Writing needs only numpy: the recorded program does not load a Parquet library.
:mod:`gpuledger.analyze.posting` builds the run's tables from a journal.

Arrays are named ``table.column``. All columns of one table in one part have the same length. Data without a fixed width
(names, modules, stacks, notes) is stored as one JSON text per part.
"""

from __future__ import annotations

import array
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.files.writing import replaced
from gpuledger.model.journal import log
from gpuledger.model.journal.columns import COLUMNS as COLUMNS
from gpuledger.model.journal.log import LARGEST_BYTES, JournalLog, pack_entry

if TYPE_CHECKING:
    pass

JOURNAL_VERSION = 1

TEXTS = ("names", "modules", "stacks", "notes", "facts")
"""Keys of the JSON text in each part."""


class Action(IntEnum):
    """Actions of the allocator. The numbers are stored in the journal."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    OTHER = 9


class BlockState(IntEnum):
    """State of a block in a snapshot."""

    INACTIVE = 0
    ALLOCATED = 1
    AWAITING_FREE = 2


TORCH_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "free": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOC,
    "segment_free": Action.SEGMENT_FREE,
    "segment_map": Action.SEGMENT_MAP,
    "segment_unmap": Action.SEGMENT_UNMAP,
    "snapshot": Action.SNAPSHOT,
    "oom": Action.OOM,
}
"""Action name in PyTorch's memory history -> action."""

TORCH_STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ALLOCATED,
    "active_pending_free": BlockState.AWAITING_FREE,
    "active_awaiting_free": BlockState.AWAITING_FREE,
}
"""Block state in PyTorch's memory snapshot -> state."""


class TagFlag(IntEnum):
    """Flag bits of a tag."""

    RECOMPUTED = 1
    COMMUNICATION = 2
    REDUCE_SCATTER = 4


class ActivityKind(IntEnum):
    """Kinds of events in profiled steps."""

    HOST = 0
    KERNEL = 1
    COPY = 2


MODULE_RANGE, PHASE_RANGE = "gpuledger.module.", "gpuledger.phase."
"""Prefixes of the names of gpuledger's own ranges in profiled steps. A module id or a phase follows."""

FUSION_RANGE = "gpuledger.fusion."
"""Prefix of the name of a range around a kernel of compiled code. Its position in the fact ``fusions`` follows."""

GRAPH_RANGE = "gpuledger.graph."
"""Prefix of the name of a range around a replay of a CUDA graph. The number of its capture follows."""

LINE_RANGE = "gpuledger.line."
"""Prefix of the name of a range around an operator that Python calls. The id of the call's stack follows."""

NODE_EVENT = "autograd::engine::evaluate_function: "
"""Prefix of the name of the event that torch records around each graph node in backward."""

NO_GRAD = "#"
"""Suffix of the name of a module's range if gradients were disabled when it was called."""

SCOPE_RANGE = "gpuledger.scope."
"""Prefix of the name of a mark in profiled steps: the scope of its thread changes here.

The id of the new scope's path follows, -1 for none. If a scope was entered, a dot and the id of the name appended to
the path follow, -1 for a name that replaces the path.
"""

EARLIER_CALL = "gpuledger.earlier_call."
"""Prefix of the name of a mark in profiled steps. Until here, its thread was inside a call from before the profile.

The id of the module that was called follows, and the suffix of a module's range.
"""

CACHED_CODE, FOUND_BY_LINES = "loaded from a cache", "modules found by source lines"
WITHOUT_MODULES = "compiled autograd compiled nodes without modules"
"""Values of the fact ``compiled_unread`` with a note of their own. Other values say why generated code is unknown."""

_TYPE_CODES = {"i1": "b", "i4": "i", "i8": "q", "f8": "d"}
"""numpy types of columns -> type codes of ``array``."""

REASONS = (
    *("open", "step_end", "drain", "close", "oom", "exit", "scan", "time", "energy"),
    *("call", "collective_start", "collective_end", "census", "operator"),
)
"""Why a snapshot, a counter reading or a pause was recorded. The stored number is the position.

``call`` is the first module call, ``operator`` the first operator. ``collective_start`` and ``collective_end`` are the
first collective of a process group.
"""

OWN_ERROR = "an internal error of gpuledger"
"""Value of the fact ``closed`` if the recording ended with an error of gpuledger."""

STEP_KINDS = ("optimizer", "call", "marked", "replay")
"""What ended a step. The stored number is the position. ``replay`` is that of a CUDA graph with a call of the model."""


@dataclass
class Part:
    """Rows collected since the last part was written.

    ``text`` contains data without a fixed width: ``names``, ``modules`` and ``stacks`` (new ones only, in id order),
    ``notes`` (sentences), and ``facts`` (one value per key; later parts override earlier ones).
    """

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    modules: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[list[tuple[str, int, str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def add(self, table: str, **columns: Any) -> None:
        """Append rows to ``table``. Every column of :data:`COLUMNS` must be given, as a scalar or a sequence.

        Converts nothing, because the program is paused during this call.
        """
        self.rows.setdefault(table, []).append(columns)

    def add_counters(self, t_ns: int, device_idx: int, step: int, reason: str, **counters: int) -> None:
        """Append a reading of an allocator's counters; ``reason`` is one of :data:`REASONS`."""
        self.add("counters", t_ns=t_ns, device_idx=device_idx, step=step, reason=REASONS.index(reason), **counters)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return every table's columns as ``table.column`` arrays.

        Raises:
            ValueError: a column is missing or unknown.
        """
        joined = {}
        for table, batches in list(self.rows.items()):  # another thread can add a table
            pieces = [_columns_of(table, batch) for batch in batches]
            for name in COLUMNS[table]:
                joined[f"{table}.{name}"] = np.concatenate([piece[name] for piece in pieces])
        return joined

    def packed(self) -> tuple[dict[str, int], list[bytes]]:
        """Return the number of rows of every table, and its columns' values in the order of :data:`COLUMNS`.

        Raises:
            ValueError: a column is missing or unknown.
        """
        rows: dict[str, int] = {}
        values: list[bytes] = []
        for table, batches in list(self.rows.items()):  # another thread can add a table
            packed = [_pack_columns(table, batch) for batch in batches]
            rows[table] = sum(length for length, _ in packed)
            for pieces in zip(*(columns for _, columns in packed), strict=True):
                values += pieces
        return rows, values


def _pack_columns(table: str, given: dict[str, Any]) -> tuple[int, list[bytes]]:
    """Return the number of rows of a batch, and each column's values as bytes.

    Uses ``array``, which is faster than numpy for few rows.
    """
    expected = COLUMNS[table]
    if given.keys() != expected.keys():
        raise ValueError(f"{table}: columns {sorted(set(given) ^ set(expected))} missing or unknown")
    columns = []
    length = 1
    for name, kind in expected.items():
        value = given[name]
        if isinstance(value, (list, tuple)):
            column = array.array(_TYPE_CODES[kind], value).tobytes()
        elif isinstance(value, (int, float)):
            column = array.array(_TYPE_CODES[kind], (value,)).tobytes()
        else:
            column = np.asarray(value, dtype=kind).tobytes()
        columns.append(column)
        length = max(length, len(column) // int(kind[1:]))
    sizes = (length * int(kind[1:]) for kind in expected.values())
    return length, [
        column if len(column) == size else column * length for column, size in zip(columns, sizes, strict=True)
    ]


def _columns_of(table: str, given: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Return one batch of rows as arrays of one length."""
    expected = COLUMNS[table]
    if set(given) != set(expected):
        raise ValueError(f"{table}: columns {sorted(set(given) ^ set(expected))} missing or unknown")
    arrays = {name: np.atleast_1d(np.asarray(given[name], dtype=dtype)) for name, dtype in expected.items()}
    length = max(array.size for array in arrays.values())
    return {
        name: array if array.size == length else np.broadcast_to(array, (length,)) for name, array in arrays.items()
    }


Save = Callable[..., None]


def write_plain(stream: IO[bytes], **arrays: NDArray[Any]) -> None:
    """Write arrays uncompressed, so that the recorded program does not wait for compression."""
    np.savez(stream, allow_pickle=False, **arrays)


def write_compressed(stream: IO[bytes], **arrays: NDArray[Any]) -> None:
    """Write arrays compressed, for samples over days."""
    np.savez_compressed(stream, allow_pickle=False, **arrays)


class JournalWriter:
    """Writes parts into ``directory``, one after another.

    Args:
        directory: Target directory. Created with the first part.
        save: :func:`write_plain` or :func:`write_compressed`.
        check: Called before each part; raises RunReplacedError if another run has replaced this one.
    """

    def __init__(self, directory: Path, save: Save = write_plain, check: Callable[[], None] = lambda: None) -> None:
        self.directory = directory
        self.next_part = 0
        self._save = save
        self._log: JournalLog | None = None
        self.check = check

    def write(self, part: Part) -> None:
        """Write one part, under a temporary name and then renamed.

        Raises:
            RunReplacedError: another run has replaced this one.
            OSError: the disk is full or the directory cannot be written; no partial file is left.
        """
        blob = np.frombuffer(json.dumps(_text_of(part)).encode("utf-8", "surrogatepass"), dtype=np.uint8)
        arrays = part.arrays()
        place = self._next_place(".npz")
        with replaced(place) as stream:
            self._save(stream, text=blob, **arrays)
        self._begin_next()

    def append(self, part: Part) -> None:
        """Write one part as an entry of a growing file. Takes a small fraction of the time of :meth:`write`.

        Raises:
            RunReplacedError: another run has replaced this one.
            OSError: the disk is full or the directory cannot be written; earlier entries are kept.
        """
        rows, values = part.packed()
        entry = pack_entry(_text_of(part), rows, values)
        if self._log is not None and self._log.size_bytes > LARGEST_BYTES:
            self._begin_next()
        if self._log is None:
            self._log = JournalLog(self._next_place(log.SUFFIX))
        self._log.append(entry)

    def _next_place(self, suffix: str) -> Path:
        self.check()
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._log is not None:
            self._begin_next()
        return self.directory / f"{self.next_part:05d}{suffix}"

    def _begin_next(self) -> None:
        self._log = None
        self.next_part += 1


def _text_of(part: Part) -> dict[str, Any]:
    return {**{key: getattr(part, key) for key in TEXTS}, "journal_version": JOURNAL_VERSION}
