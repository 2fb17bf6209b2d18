"""Memory snapshots of PyTorch 2.1 and later (``torch.cuda.memory._dump_snapshot``): parsed, never unpickled.

The file is a pickle of plain values, read by :mod:`.pickle_reader`. It has every segment and block of each device, and
the allocator's last events. It has no modules or categories, unless its metadata was written by gpuledger.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuledger.analyze.posting.replay import AllocatorSettings
from gpuledger.errors import InputError
from gpuledger.formats.snapshot.pickle_reader import items_of, read_pickle
from gpuledger.formats.snapshot.snapshot_columns import SnapshotColumns, count_of
from gpuledger.formats.snapshot.snapshot_lives import I64, Closing, DeviceEvents, DeviceLives, follow, paired
from gpuledger.formats.snapshot.snapshot_tables import snapshot_tables
from gpuledger.model.bounds import LARGEST_REQUEST_BYTES
from gpuledger.model.imported import ImportedRank, ImportedRun
from gpuledger.model.journal.journal import TORCH_ACTIONS, TORCH_STATES, Action, BlockState
from gpuledger.model.pools import UNKNOWN_POOL, pool_number

MAX_DEVICES = 4_096
_LATEST_US = 1 << 53
_LARGEST_POOL = (1 << 31) - 1


def looks_like(path: Path, head: bytes) -> bool:
    """Return whether the file is a pickle of protocol 2 to 5. No other format starts like this."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def read_files(paths: tuple[Path, ...], name: str, options: Mapping[str, Any]) -> ImportedRun:
    """Return the snapshots as one run, one rank per file.

    Raises:
        InputError: a file is not a snapshot, is damaged, or contains more than plain values.
    """
    ranks = tuple(_read_rank(number, path) for number, path in enumerate(paths))
    facts = {"started_ns": None}
    return ImportedRun(name, "torch-snapshot", tuple(str(path) for path in paths), ranks, facts=facts)


def _read_rank(number: int, path: Path) -> ImportedRank:
    try:
        with path.open("rb") as file:
            ours = looks_like(path, file.read(2))
            file.seek(0)
            data = file.read() if ours else b""
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if not data:
        raise InputError(f"{path}: not a memory snapshot: expected a pickle of protocol 2 to 5")
    try:
        return _rank_of(number, read_snapshot(data, str(path)))
    except InputError as error:
        titled = error.message.startswith(str(path))
        raise InputError(error.message if titled else f"{path}: {error.message}", hint=error.hint) from error
    except (IndexError, RecursionError, OverflowError) as error:
        raise InputError(f"{path}: not a memory snapshot, or damaged ({type(error).__name__})") from error


@dataclass(frozen=True)
class Snapshot:
    """The devices of one file, and the texts and stacks that its numbers refer to."""

    devices: tuple[DeviceLives, ...]
    columns: SnapshotColumns
    settings: dict[str, Any]
    oom: tuple[dict[str, Any], ...]


def read_snapshot(data: bytes, title: str) -> Snapshot:
    """Return a snapshot's devices with the lifetime of every block.

    Raises:
        InputError: it is not a snapshot, or is damaged.
    """
    columns, settings, traces, oom = _read(data, title)
    columns.release()  # free the memory of a large file before the lifetimes are computed
    rules = AllocatorSettings.from_snapshot(settings)
    devices = tuple(follow(device_idx, trace, closing, rules) for device_idx, trace, closing in traces)
    return Snapshot(devices, columns, settings, tuple(oom))


def _read(
    data: bytes, title: str
) -> tuple[SnapshotColumns, dict[str, Any], list[tuple[int, DeviceEvents, Closing]], list[dict[str, Any]]]:
    """Return the columns with their texts and stacks, the settings, each device's trace and state, and failures."""
    value, memo = read_pickle(data, title)
    root: dict[str, Any] = {"segments": value} if isinstance(value, list) else value
    if not isinstance(root, dict) or not isinstance(root.get("segments"), list):
        raise InputError("not a memory snapshot: its list of segments is missing")
    traces = root.get("device_traces", [])
    if (
        not isinstance(traces, list)
        or not all(isinstance(trace, list) for trace in traces)
        or len(traces) > MAX_DEVICES
    ):
        raise InputError("not a memory snapshot: its traces are not lists")
    columns = SnapshotColumns(memo.data, memo)
    segments = list(items_of(root["segments"], memo))
    closings = _closings(columns, segments)
    settings = _plain_settings(root.get("allocator_settings"))
    paired_traces: list[tuple[int, DeviceEvents, Closing]] = []
    oom: list[dict[str, Any]] = []
    for device_idx in sorted({*closings, *(number for number, trace in enumerate(traces) if trace)}):
        items = traces[device_idx] if 0 <= device_idx < len(traces) else []
        trace = _trace(columns, items)
        oom += _out_of_memory(columns, device_idx, items, trace)
        paired_traces.append((device_idx, paired(trace), closings.get(device_idx) or _closing(columns, [])))
    return columns, settings, paired_traces, oom


# -- the state in the snapshot --------------------------------------------------------------------------------------


def _closings(columns: SnapshotColumns, segments: list[Any]) -> dict[int, Closing]:
    """Return the state of each device in the snapshot."""
    count_of(segments)
    by_device: dict[int, list[dict[str, Any]]] = {}
    for segment in segments:
        device = segment.get("device")
        if type(device) is not int or not 0 <= device < MAX_DEVICES:
            raise InputError("not a memory snapshot: a segment has no valid device")
        by_device.setdefault(device, []).append(segment)
    return {device: _closing(columns, mine) for device, mine in by_device.items()}


def _closing(columns: SnapshotColumns, segments: list[Any]) -> Closing:
    lists = [segment.get("blocks") for segment in segments]
    counts = np.array([count_of(blocks) for blocks in lists], dtype=np.int64)
    items = list(itertools.chain.from_iterable(lists))
    segment_address, segment_bytes = (columns.numbers(segments, key) for key in ("address", "total_size"))
    streams = columns.numbers(segments, "stream")
    sizes = _checked(columns.numbers(items, "size", -1), "block")
    before = np.concatenate(([0], np.cumsum(sizes)))
    first = np.concatenate(([0], np.cumsum(counts)))[:-1]
    owner = np.repeat(np.arange(counts.size), counts)
    requested = columns.numbers(items, "requested_size", -1)
    return Closing(
        segment_address=segment_address,
        segment_bytes=_checked(segment_bytes, "segment"),
        segment_stream=streams,
        segment_pool=np.array([_pool_of(segment.get("segment_pool_id")) for segment in segments], dtype=np.int64),
        expandable=np.array([segment.get("is_expandable") is True for segment in segments], dtype=bool),
        address=segment_address[owner] + before[:-1] - before[first][owner],
        bytes=sizes,
        requested_bytes=np.where((requested >= 0) & (requested <= sizes), requested, sizes),
        state=_coded(columns, columns.labels(items, "state"), TORCH_STATES, BlockState.ALLOCATED),
        stream=streams[owner],
        stack_id=columns.stack_numbers(items),
        text_id=columns.labels(items, "user_metadata"),
    )


def _pool_of(pair: Any) -> int:
    """Return a segment's pool from its number; :data:`UNKNOWN_POOL` if the file has no valid one."""
    numbers = pair if type(pair) in (tuple, list) and len(pair) == 2 else (None, None)
    known = all(type(number) is int and 0 <= number <= _LARGEST_POOL for number in numbers)
    return pool_number(*numbers) if known else UNKNOWN_POOL


def _checked(sizes: I64, what: str) -> I64:
    """Return ``sizes`` after a check.

    Raises:
        InputError: one is negative or more than any GPU has.
    """
    wrong = np.flatnonzero((sizes < 0) | (sizes > LARGEST_REQUEST_BYTES))
    if wrong.size or float(sizes.astype(np.float64).sum()) > 2.0**62:
        size = f"{int(sizes[wrong[0]]):,}" if wrong.size else "all"
        raise InputError(f"damaged: a {what} has an impossible size ({size} bytes)")
    return sizes


def _coded(columns: SnapshotColumns, labels: I64, codes: Mapping[str, int], default: int) -> I64:
    """Return the code of each label; ``default`` for unknown labels."""
    known = np.array([*(codes.get(text, default) for text in columns.texts), default], dtype=np.int64)
    coded: I64 = known[labels]
    return coded


# -- the events -----------------------------------------------------------------------------------------------------


def _trace(columns: SnapshotColumns, items: list[Any]) -> DeviceEvents:
    count_of(items)
    action = _coded(columns, columns.labels(items, "action"), TORCH_ACTIONS, Action.OTHER).astype(np.int8)
    sizes = columns.numbers(items, "size")
    sized = action <= Action.SEGMENT_UNMAP
    _checked(sizes[sized & (action >= Action.SEGMENT_ALLOC)], "segment in the trace")
    wrong = sizes[sized & ((sizes < 0) | (sizes > LARGEST_REQUEST_BYTES))]
    if wrong.size:
        raise InputError(f"damaged: an event has an impossible size ({int(wrong[0]):,} bytes)")
    times_us = columns.numbers(items, "time_us", -1)
    return DeviceEvents(
        action=action,
        address=columns.numbers(items, "addr"),
        bytes=sizes,
        stream=columns.numbers(items, "stream"),
        time_ns=np.where((times_us > 0) & (times_us < _LATEST_US), times_us * 1000, -1),
        stack_id=columns.stack_numbers(items),
        text_id=columns.labels(items, "user_metadata"),
    )


def _out_of_memory(
    columns: SnapshotColumns, device_idx: int, items: list[Any], trace: DeviceEvents
) -> list[dict[str, Any]]:
    """Return each out-of-memory error of the device."""
    rows = np.flatnonzero(trace.action == Action.OOM)
    if not rows.size:
        return []
    free = columns.numbers(items, "device_free", -1)
    return [
        {
            "device_idx": device_idx,
            "tried_bytes": int(trace.bytes[row]),
            "total_bytes": None,
            "free_bytes": int(free[row]) if free[row] >= 0 else None,
            "largest_free_bytes": None,
        }
        for row in rows.tolist()
    ]


def _plain_settings(value: Any) -> dict[str, Any]:
    """Return the allocator's settings with plain values: numbers, words, and sizes with their divisions."""
    if not isinstance(value, dict):
        return {}
    settings: dict[str, Any] = {
        str(key): one for key, one in value.items() if type(one) in (str, int, bool, float) and len(str(one)) < 100
    }
    divisions = value.get("roundup_power2_divisions")
    if isinstance(divisions, dict):
        pairs = ((str(size), number) for size, number in divisions.items())
        settings["roundup_power2_divisions"] = {
            size: number
            for size, number in pairs
            if size.isascii() and size.isdigit() and len(size) < 8 and type(number) is int and 0 <= number <= 1 << 20
        }
    return settings


# -- the run --------------------------------------------------------------------------------------------------------


def _rank_of(number: int, snapshot: Snapshot) -> ImportedRank:
    facts = {
        "devices": [{"device_idx": device.device_idx, "name": "", "total_bytes": None} for device in snapshot.devices],
        "allocator_settings": snapshot.settings,
        "oom": list(snapshot.oom),
        "stacks": bool(snapshot.columns.stacks),
        "checks": [_check(device) for device in snapshot.devices],
    }
    return ImportedRank(number, snapshot_tables(snapshot.devices, snapshot.columns), facts, _notes(snapshot))


def _check(device: DeviceLives) -> dict[str, Any]:
    return {
        "name": "allocated bytes replayed to the snapshot",
        "device_idx": device.device_idx,
        "expected": device.shown_bytes,
        "found": device.replayed_bytes,
        "ok": not device.bytes_differ,
    }


def _notes(snapshot: Snapshot) -> tuple[str, ...]:
    notes = ["A memory snapshot has no steps. It has categories and modules only if gpuledger wrote it."]
    if not any(device.trace.action.size for device in snapshot.devices):
        notes.append("The snapshot has no trace, so it shows one instant only.")
    if not snapshot.columns.stacks:
        notes.append("The snapshot has no stacks.")
    if snapshot.settings.get("trace_alloc_overflowed"):
        notes.append("The snapshot's trace was full, and PyTorch dropped its oldest events.")
    if snapshot.columns.stacks_left_out:
        notes.append(f"{snapshot.columns.stacks_left_out:,} stacks were skipped because the snapshot has too many.")
    for device in snapshot.devices:
        if device.lives.unmatched_events:
            notes.append(
                f"cuda:{device.device_idx}: {device.lives.unmatched_events:,} events "
                "do not match the events before them."
            )
        if device.bytes_differ:
            notes.append(
                f"cuda:{device.device_idx}: replaying the trace gives {abs(device.bytes_differ):,} bytes "
                f"{'more' if device.bytes_differ > 0 else 'less'} than the snapshot shows as allocated."
            )
    return tuple(notes)
