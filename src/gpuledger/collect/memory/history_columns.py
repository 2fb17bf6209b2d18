"""Turn the allocator's history, as torch returns it, into columns of the journal.

The program is paused meanwhile. ``bench/time/recording_parts.py`` measures how long.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import Any

import numpy as np

from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.model.bounds import LARGEST_REQUEST_BYTES
from gpuledger.model.journal.journal import TORCH_ACTIONS, Action

_ACTIONS = {name: int(action) for name, action in TORCH_ACTIONS.items()}
_OTHER = int(Action.OTHER)
_FRAME = itemgetter("filename", "line", "name")
_COMPILED = re.compile(r"(\?\?|.*\.(c|cc|cpp|cu|cuh|h|hpp|S|so[.\d]*))?")
"""File names of frames of compiled code, which a history of the program's own can have."""

Entry = dict[str, Any]
"""One event of torch's history."""

TorchFrames = list[dict[str, Any]]
"""A stack of torch's history, innermost frame first."""


def signed(number: int) -> int:
    """Return a 64-bit number as the journal stores it, with a sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def sizes_of(trace: list[Entry]) -> list[int]:
    """Return the bytes of each event, at most LARGEST_REQUEST_BYTES: a failed request can be of any size.

    The error itself is stored with the size that was requested.
    """
    sizes = [entry["size"] for entry in trace]
    most_bytes = LARGEST_REQUEST_BYTES
    return sizes if max(sizes) <= most_bytes else [min(size, most_bytes) for size in sizes]


def event_columns(trace: list[Entry], tags: TagTable, stacks: HistoryStacks | None) -> dict[str, Any]:
    """Return the journal's columns of a history, except the device.

    Args:
        trace: The events of one device; not empty.
        tags: Assigns ids to the events' tokens.
        stacks: Assigns ids to the stacks of allocations; None if the history has none.
    """
    streams = [entry["stream"] for entry in trace]
    tokens = [entry.get("user_metadata", "") for entry in trace]
    tag_ids = {token: tags.number(token) for token in dict.fromkeys(tokens)}
    return {
        "action": [_ACTIONS.get(entry["action"], _OTHER) for entry in trace],
        "address": [entry.get("addr", 0) for entry in trace],
        "bytes": sizes_of(trace),
        "stream": streams if max(streams) < 1 << 63 else list(map(signed, streams)),
        "time_ns": np.array([entry["time_us"] for entry in trace], dtype=np.int64) * 1000,
        "tag_id": list(map(tag_ids.__getitem__, tokens)),
        "stack_id": -1 if stacks is None else stacks.numbers(trace),
        "operator_id": -1,
    }


class HistoryStacks:
    """Assigns ids to the stacks of allocations.

    torch creates a list of frames for every allocation, and the frames themselves once per snapshot. So a list is
    compared with the earlier ones of its snapshot by the identity of its frames, and only a stack that is new there is
    read.

    Args:
        table: The stacks of the journal.
    """

    def __init__(self, table: StackTable) -> None:
        self._table = table
        self._frame_ids: dict[tuple[str, int, str], int] = {}
        self._stack_ids: dict[tuple[int, ...], int] = {}
        """Ids of a stack's frames -> id of the stack."""

    def numbers(self, trace: list[Entry]) -> list[int]:
        """Return the id of the stack of each allocation; -1 for none, and for other events."""
        alike: dict[tuple[int, ...], list[tuple[TorchFrames, int]]] = {}
        frame_ids: dict[int, int] = {}
        found = []
        for entry in trace:
            frames = entry.get("frames")
            if not frames or entry["action"] != "alloc":
                found.append(-1)
                continue
            count = len(frames)
            key = (count, id(frames[0]), id(frames[count // 4]), id(frames[count // 2]), id(frames[-1]))
            same_key = alike.setdefault(key, [])
            for other, number in same_key:
                if other == frames:
                    found.append(number)
                    break
            else:
                found.append(self._read(frames, frame_ids))
                same_key.append((frames, found[-1]))
        return found

    def _read(self, frames: TorchFrames, frame_ids: dict[int, int]) -> int:
        """Return the id of a stack.

        Args:
            frames: The stack.
            frame_ids: The frames of its snapshot that have been read -> their ids. Frames are added to it.
        """
        for frame in frames:
            if id(frame) not in frame_ids:
                frame_ids[id(frame)] = self._frame_ids.setdefault(_FRAME(frame), len(self._frame_ids))
        key = tuple(map(frame_ids.__getitem__, map(id, frames)))
        number = self._stack_ids.get(key)
        if number is None:
            read = (_FRAME(frame) for frame in frames if not _COMPILED.fullmatch(frame["filename"]))
            number = self._stack_ids[key] = self._table.intern(tuple(read))
        return number
