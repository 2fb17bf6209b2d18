"""The tables of an imported memory snapshot."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.replay import NEVER
from gpuledger.analyze.posting.rows import stack_table
from gpuledger.files.reading import storable
from gpuledger.formats.snapshot.snapshot_columns import Frame, SnapshotColumns
from gpuledger.formats.snapshot.snapshot_lives import I64, DeviceLives
from gpuledger.model.accounts import CATEGORIES, PHASES
from gpuledger.model.imported import rows_to_table
from gpuledger.model.journal.journal import Action
from gpuledger.model.pools import UNKNOWN_POOL
from gpuledger.model.schema.tables import TABLES

if TYPE_CHECKING:
    import pyarrow as pa

UNKNOWN_PHASE = ""
_PHASE_WORDS = (UNKNOWN_PHASE, *PHASES)
_POOL_WORDS = ("small", "large", "expandable")
SMALL_SEGMENT_BYTES = 2 << 20
_TORCH_FILE = re.compile(r"(^|/)(torch|torchvision|torchaudio)/")
_MAX_NAME = 1_000_000
MAX_MODULES = 20_000
MAX_PATH = 2_000
MAX_DEPTH = 64


def snapshot_tables(devices: tuple[DeviceLives, ...], columns: SnapshotColumns) -> dict[str, pa.Table]:
    """Return blocks, segments, counters, names, modules and stacks of a snapshot."""
    import pyarrow as pa

    words = _Words(columns)
    tables: dict[str, Any] = {
        "blocks": pa.concat_tables([_blocks(device, words) for device in devices]) if devices else _empty("blocks"),
        "segments": pa.concat_tables([_segments(device) for device in devices]) if devices else _empty("segments"),
        "counters": rows_to_table("counters", [row for device in devices for row in _counters(device)]),
        "modules": words.modules.table(),
    }
    tables["names"] = pa.table([range(len(words.names)), words.names], schema=TABLES["names"].arrow_schema())
    tables["stacks"] = stack_table(columns.stacks)
    return tables


def _empty(name: str) -> pa.Table:
    return TABLES[name].arrow_schema().empty_table()


class Modules:
    """Module paths, numbered in the order in which they occur; parents come before their children.

    Paths that exceed the limits on depth, length or number are not modules: an untrusted file could have any number.
    """

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def number(self, path: str) -> int:
        """Return a path's number; -1 for no path."""
        known = self._number.get(path)
        if known is None:
            room = len(self._number) < MAX_MODULES and len(path) <= MAX_PATH and path.count(".") <= MAX_DEPTH
            if not path or not room:
                return -1
            if "." in path:
                self.number(path.rpartition(".")[0])
            known = self._number[path] = len(self._number)
        return known

    def table(self) -> pa.Table:
        """Return the table ``modules``, without classes, which are not known."""
        rows = [
            {
                "module_id": number,
                "parent_id": self._number.get(path.rpartition(".")[0]),
                "path": storable(path),
                "class_name": "",
                "root_id": self._number.get(path.partition(".")[0], number),
                "depth": path.count("."),
                "compiled": False,
            }
            for path, number in self._number.items()
        ]
        return rows_to_table("modules", rows)


class _Words:
    """Names, modules and scopes of blocks, from metadata texts and stacks."""

    def __init__(self, columns: SnapshotColumns) -> None:
        self.names: list[str] = []
        self.modules = Modules()
        self._name_number: dict[str, int] = {}
        parsed = [_parse_text(text) for text in columns.texts]
        self.category = self._last([CATEGORIES.index(one["category"]) for one in parsed], CATEGORIES.index("other"))
        self.phase = self._last([_PHASE_WORDS.index(one["phase"]) for one in parsed], 0)
        self.step = self._last([one["step"] for one in parsed], 0)
        self._parsed = parsed
        self._columns = columns

    @staticmethod
    def _last(values: list[int], default: int) -> I64:
        """Return ``values`` followed by ``default``, which an index of -1 selects."""
        return np.array([*values, default], dtype=np.int64)

    def module_ids(self, text_id: I64) -> I64:
        """Return the module in each text; -1 for none."""
        return self._mapped(text_id, lambda text: self.modules.number(self._parsed[text]["module"]))

    def scope_ids(self, text_id: I64) -> I64:
        """Return the scope in each text; -1 for none."""
        return self._mapped(text_id, lambda text: self._name(self._parsed[text]["scope"]))

    def name_ids(self, text_id: I64, stack_id: I64) -> I64:
        """Return each block's name from its metadata; without metadata, the line that allocated it; -1 for none."""
        by_text = self._mapped(text_id, lambda text: self._name(self._parsed[text]["name"]))
        by_stack = self._mapped(stack_id, lambda stack: self._name(_line_of(self._columns.stacks[stack])))
        return np.where(by_text >= 0, by_text, by_stack)

    @staticmethod
    def _mapped(numbers: I64, meaning: Any) -> I64:
        distinct, place = np.unique(numbers, return_inverse=True)
        values = np.array([meaning(number) if number >= 0 else -1 for number in distinct.tolist()], dtype=np.int64)
        mapped: I64 = values[place] if values.size else numbers
        return mapped

    def _name(self, name: str) -> int:
        if not name:
            return -1
        number = self._name_number.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(storable(name[:_MAX_NAME]))
        return number


def _parse_text(text: str) -> dict[str, Any]:
    """Return the contents of a metadata text: the fields written by gpuledger's export, or a name."""
    nothing = {"category": "other", "module": "", "scope": "", "phase": UNKNOWN_PHASE, "step": 0, "name": ""}
    if not text.startswith('{"category": '):
        return {**nothing, "name": "" if text == "N/A" else text}
    try:
        kept = json.loads(text)
    except ValueError:
        return {**nothing, "name": text}
    step = kept.get("step", 0)
    return {
        "category": kept["category"] if kept["category"] in CATEGORIES else "other",
        "module": _text(kept.get("module")),
        "scope": _text(kept.get("scope")),
        "phase": kept["phase"] if kept.get("phase") in PHASES else UNKNOWN_PHASE,
        "step": step if isinstance(step, int) and 0 <= step < 1 << 31 else 0,
        "name": _text(kept.get("tensor")),
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _line_of(frames: tuple[Frame, ...]) -> str:
    """Return the innermost Python line outside torch as ``train.py:12 forward``; "" if there is none."""
    python = [frame for frame in frames if frame[0].endswith(".py")]
    own = next((frame for frame in python if not _TORCH_FILE.search(frame[0])), python[0] if python else None)
    return f"{own[0].rpartition('/')[2]}:{own[1]} {own[2]}" if own else ""


# -- rows -----------------------------------------------------------------------------------------------------------


def _maybe(values: I64, missing: NDArray[np.bool_], kind: str = "int64") -> pa.Array:
    import pyarrow as pa

    return pa.array(np.where(missing, 0, values), type=getattr(pa, kind)(), mask=missing)


def _label(codes: NDArray[Any], words: tuple[str, ...]) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(words, pa.string()))


def _time_at(device: DeviceLives, index: I64) -> pa.Array:
    times = device.trace.time_ns
    inside = (index >= 0) & (index != NEVER)
    found = times[np.where(inside, index, 0)] if times.size else np.full(index.size, -1)
    return _maybe(found, ~inside | (found < 0))


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    import pyarrow as pa

    schema = TABLES[name].arrow_schema()
    count = len(columns["device_idx"])
    given = [columns[one.name] if one.name in columns else pa.nulls(count, one.type) for one in schema]
    return pa.table(given, schema=schema)


def _blocks(device: DeviceLives, words: _Words) -> pa.Table:
    lives, text = device.lives, device.text_id
    names, modules, scopes = words.name_ids(text, device.stack_id), words.module_ids(text), words.scope_ids(text)
    pools = device.pool_id
    return _table(
        "blocks",
        {
            "device_idx": np.full(lives.address.size, device.device_idx),
            "stream": lives.stream,
            "pool_id": _maybe(pools, pools == UNKNOWN_POOL, "int32"),
            "address": lives.address,
            "requested_bytes": lives.requested_bytes,
            "allocated_bytes": lives.allocated_bytes,
            "alloc_index": lives.alloc_index,
            "free_requested_index": _maybe(lives.free_requested_index, lives.free_requested_index == NEVER),
            "free_index": _maybe(lives.free_index, lives.free_index == NEVER),
            "alloc_ns": _time_at(device, lives.alloc_index),
            "free_requested_ns": _time_at(device, lives.free_requested_index),
            "free_ns": _time_at(device, lives.free_index),
            "step": words.step[text],
            "phase": _label(words.phase[text], _PHASE_WORDS),
            "category": _label(words.category[text], CATEGORIES),
            "module_id": _maybe(modules, modules < 0, "int32"),
            "name_id": _maybe(names, names < 0, "int32"),
            "scope_id": _maybe(scopes, scopes < 0, "int32"),
            "stack_id": _maybe(device.stack_id, device.stack_id < 0, "int32"),
        },
    )


def _segments(device: DeviceLives) -> pa.Table:
    lives = device.lives
    pool = np.where(lives.segment_mapped, 2, np.where(lives.segment_bytes == SMALL_SEGMENT_BYTES, 0, 1))
    return _table(
        "segments",
        {
            "device_idx": np.full(lives.segment_address.size, device.device_idx),
            "address": lives.segment_address,
            "bytes": lives.segment_bytes,
            "stream": lives.segment_stream,
            "pool": _label(pool, _POOL_WORDS),
            "alloc_index": lives.segment_alloc_index,
            "free_index": _maybe(lives.segment_free_index, lives.segment_free_index == NEVER),
            "alloc_ns": _time_at(device, lives.segment_alloc_index),
            "free_ns": _time_at(device, lives.segment_free_index),
        },
    )


def _counters(device: DeviceLives) -> list[dict[str, Any]]:
    """Return counters at the start of the trace and at the snapshot, if the trace has times."""
    trace, closing = device.trace, device.closing
    timed = np.flatnonzero(trace.time_ns >= 0)
    if not timed.size:
        return []
    before = (trace.action[: trace.marker + 1] == action for action in (Action.ALLOC, Action.FREE_REQUESTED))
    allocs, frees = (int(found.sum()) for found in before)
    active = closing.state > 0
    return [
        {
            "t_ns": int(trace.time_ns[timed[timed <= max(trace.marker, int(timed[0]))][-1]]),
            "device_idx": device.device_idx,
            "step": 0,
            "reason": "close",
            "event_index": trace.marker,
            "alloc_count": allocs,
            "free_count": frees,
            "allocated_bytes": device.shown_bytes,
            "requested_bytes": int(closing.requested_bytes[closing.state == 1].sum()),
            "active_bytes": int(closing.bytes[active].sum()),
            "reserved_bytes": int(closing.segment_bytes.sum()),
            "peak_allocated_bytes": device.shown_bytes,
            "peak_reserved_bytes": int(closing.segment_bytes.sum()),
        }
    ]
