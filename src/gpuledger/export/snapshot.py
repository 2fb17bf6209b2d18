"""A run as PyTorch's own memory snapshot, for PyTorch's own viewer: categories and modules are its metadata.

What was alive before the recording is written as allocated at its beginning, because the viewer colours and names what
a trace allocates only.
"""

from __future__ import annotations

import pickle
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gpuledger.files.writing import replaced
from gpuledger.model.pools import pool_pair

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

FIRST_ADDRESS = 1 << 40
"""Where blocks of a device without segments are laid out, one after the other.

Such blocks have no address, or one on the CPU, where an address can be used again before the block's free is seen.
"""
SMALLEST = 512
"""Bytes that a block of a snapshot is a multiple of. Blocks on the CPU are rounded up."""
UNKNOWN = "unknown"
"""The viewer needs an event of this category where any has one, and gives segments its colour."""
COLOURS = 10
"""Colours that the viewer has, for categories as it meets them; then it begins anew."""
PROTOCOL = 4
"""PyTorch's viewer reads up to this one."""

Event = tuple[int, int, dict[str, Any]]
Words = dict[str, Any]
Range = tuple[int, int]


def write_snapshot(rank: Rank, stream: IO[bytes]) -> int:
    """Write one rank as a pickled snapshot.

    CPU tensors become the device after the last GPU, as in PyTorch's own conversion.

    Returns:
        The number of events in its traces.
    """
    snapshot = snapshot_of(rank)
    pickle.dump(snapshot, stream, protocol=PROTOCOL)
    return sum(len(trace) for trace in snapshot["device_traces"])


def write_snapshots(run: Run, directory: Path) -> int:
    """Write every rank to ``directory/rank-N.pickle``.

    Returns:
        The number of events in all traces.
    """
    directory.mkdir(parents=True, exist_ok=True)
    count = 0
    for rank in run.ranks:
        with replaced(directory / f"rank-{rank.number}.pickle") as stream:
            count += write_snapshot(rank, stream)
    return count


def snapshot_of(rank: Rank) -> dict[str, Any]:
    """Return a rank in the structure of ``torch.cuda.memory._snapshot()``."""
    blocks, segments = rank.table("blocks").to_pylist(), rank.table("segments").to_pylist()
    found = sorted({row["device_idx"] for row in (*blocks, *segments)})
    cpu = max((device for device in found if device >= 0), default=-1) + 1
    words, leading = _Words(rank), _leading_categories(blocks)
    shown: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(max((*found, cpu if -1 in found else -1), default=-1) + 1)]
    for device in found:
        number = cpu if device < 0 else device
        own_blocks, own_segments = ([row for row in rows if row["device_idx"] == device] for rows in (blocks, segments))
        one = _Device(number, own_blocks, own_segments, words, leading)
        traces[number] = one.trace()
        shown += one.segments()
    settings = rank.manifest.allocator_settings or {}
    return {"segments": shown, "device_traces": traces, "allocator_settings": settings, "external_annotations": []}


def _leading_categories(blocks: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the categories that the viewer is to meet first: those whose colours come again, if any do."""
    total_bytes: Counter[str] = Counter()
    for block in blocks:
        total_bytes[block["category"]] += block["requested_bytes"]
    over = len(total_bytes) + 1 - COLOURS
    return (UNKNOWN, *sorted(total_bytes, key=lambda category: total_bytes[category])[: max(over - 1, 0)])


class _Words:
    """Names, modules and stacks by number, and one metadata object for each combination."""

    def __init__(self, rank: Rank) -> None:
        self._names = _by_id(rank, "names", "name_id", "name")
        self._modules = _by_id(rank, "modules", "module_id", "path")
        self._metadata: dict[tuple[Any, ...], Words] = {}
        self._stacks: dict[int, list[dict[str, Any]]] = {}
        for row in rank.table("stacks").to_pylist():
            frame = {"filename": row["file"], "line": row["line"], "name": row["function"]}
            self._stacks.setdefault(row["stack_id"], []).append(frame)

    def metadata(self, block: dict[str, Any]) -> Words:
        """Return what the viewer shows of a block; what is not known is left out."""
        key = tuple(block[name] for name in ("category", "module_id", "scope_id", "name_id", "phase", "step"))
        if key not in self._metadata:
            described = {
                "category": block["category"],
                "module": self._modules.get(block["module_id"]),
                "scope": self._names.get(block["scope_id"]),
                "tensor": self._names.get(block["name_id"]),
                "phase": block["phase"],
                "step": block["step"],
            }
            self._metadata[key] = {name: value for name, value in described.items() if value}
        return self._metadata[key]

    def frames(self, block: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a block's stack."""
        return self._stacks.get(block["stack_id"], [])


def _by_id(rank: Rank, table: str, key: str, text: str) -> dict[int | None, str]:
    rows = rank.table(table, (key, text))
    return dict(zip(rows[key].to_pylist(), rows[text].to_pylist(), strict=True))


@dataclass
class _Device:
    """One device's rows as the snapshot's segments and trace."""

    _number: int
    _blocks: list[dict[str, Any]]
    _pieces: list[dict[str, Any]]
    _words: _Words
    _leading: tuple[str, ...]

    def __post_init__(self) -> None:
        blocks, segments = self._blocks, self._pieces
        self._known_pools = sorted(
            (row["address"], row["alloc_index"], row["pool_id"]) for row in blocks if row["pool_id"] is not None
        )
        self._turnover: tuple[dict[int, list[Range]], dict[int, list[Range]]] = ({}, {})
        for piece in segments:
            for column, ranges in zip(("alloc_index", "free_index"), self._turnover, strict=True):
                if piece["pool"] == "expandable" and piece[column] is not None:
                    ends = (piece["address"], piece["address"] + piece["bytes"])
                    ranges.setdefault(piece[column], []).append(ends)
        if not segments:
            place = FIRST_ADDRESS
            for block in blocks:
                block["allocated_bytes"] = -(-block["allocated_bytes"] // SMALLEST) * SMALLEST
                block["address"] = place
                place += block["allocated_bytes"]

    # -- the trace ------------------------------------------------------------------------------------------------

    def trace(self) -> list[dict[str, Any]]:
        """Return the events in order, between one for the recording's beginning and one for the snapshot itself."""
        times = [block["alloc_ns"] for block in self._blocks if block["alloc_ns"]]
        first_us = min(times, default=0) // 1000
        events = [event for piece in self._pieces for event in self._of_segment(piece, first_us)]
        events += [event for block in self._blocks for event in self._of_block(block, first_us)]
        events.sort(key=lambda event: event[:2])
        last_us = max((event["time_us"] for _, _, event in events), default=first_us)
        opening = [{**_marker(first_us), "category": category} for category in self._leading]
        return [*opening, *(event for _, _, event in events), _marker(last_us)]

    def _of_segment(self, piece: dict[str, Any], first_us: int) -> list[Event]:
        if piece["pool"] == "expandable":
            return self._of_mapped(piece, first_us)
        events = [(piece["alloc_index"], 0, _taken("segment_alloc", piece, piece["alloc_ns"], first_us))]
        if piece["free_index"] is not None:
            events.append((piece["free_index"], 0, _taken("segment_free", piece, piece["free_ns"], first_us)))
        return events

    def _of_mapped(self, piece: dict[str, Any], first_us: int) -> list[Event]:
        """Return what a mapped piece adds, and what its end takes away.

        Where only a part is unmapped, the table ends the piece and begins its rests at the same event.
        """
        mine = [(piece["address"], piece["address"] + piece["bytes"])]
        begun, ended = self._turnover
        added = _without(mine, ended.get(piece["alloc_index"], []))
        events = [(piece["alloc_index"], 0, _mapped("segment_map", piece, part, first_us)) for part in added]
        if piece["free_index"] is not None:
            gone = _without(mine, begun.get(piece["free_index"], []))
            events += [(piece["free_index"], 0, _mapped("segment_unmap", piece, part, first_us)) for part in gone]
        return events

    def _of_block(self, block: dict[str, Any], first_us: int) -> list[Event]:
        metadata, frames = self._words.metadata(block), self._words.frames(block)
        shared = {
            "addr": block["address"],
            "size": block["requested_bytes"],
            "stream": block["stream"],
            "user_metadata": metadata,  # also where it is freed: from there the viewer goes back in time
        }
        described = {"frames": frames, "category": block["category"]}
        events = [
            (
                block["alloc_index"],
                1,
                {"action": "alloc", **shared, "time_us": _us(block["alloc_ns"], first_us), **described},
            )
        ]
        for order, (action, stem) in enumerate((("free_requested", "free_requested"), ("free_completed", "free")), 2):
            index = block[f"{stem}_index"]
            if index is not None:
                time_us = _us(block[f"{stem}_ns"], first_us)
                events.append((index, order, {"action": action, **shared, "time_us": time_us, "frames": []}))
        return events if self._pieces else [*events, *_own_segment(block, first_us)]

    # -- the state at the end -------------------------------------------------------------------------------------

    def segments(self) -> list[dict[str, Any]]:
        """Return the segments held at the end with their blocks and the free pieces between them.

        A device without segments has one for each block.
        """
        live = sorted((block for block in self._blocks if block["free_index"] is None), key=_address)
        if not self._pieces:
            return [self._segment(b["address"], b["allocated_bytes"], b["stream"], "large", [b]) for b in live]
        shown, place = [], 0
        for start, size, stream, pool in _joined([piece for piece in self._pieces if piece["free_index"] is None]):
            inside = []
            while place < len(live) and live[place]["address"] < start + size:
                inside.append(live[place])
                place += 1
            shown.append(self._segment(start, size, stream, pool, inside))
        return shown

    def _segment(self, start: int, size: int, stream: int, pool: str, inside: list[dict[str, Any]]) -> dict[str, Any]:
        rows = self._rows(start, size, inside)
        return {
            "device": self._number,
            "address": start,
            "total_size": size,
            "stream": stream,
            "segment_type": "small" if pool == "small" else "large",
            "segment_pool_id": self._pool_of(start, size),
            "is_expandable": pool == "expandable",
            "allocated_size": sum(row["size"] for row in rows if row["state"] == "active_allocated"),
            "active_size": sum(row["size"] for row in rows if row["state"] != "inactive"),
            "requested_size": sum(row["requested_size"] for row in rows if row["state"] == "active_allocated"),
            "frames": [],
            "blocks": rows,
        }

    def _pool_of(self, start: int, size: int) -> tuple[int, int]:
        """Return a segment's pool as torch numbers it. Its last block's is taken."""
        low, high = (bisect_left(self._known_pools, (place,)) for place in (start, start + size))
        pool = max(((index, pool) for _, index, pool in self._known_pools[low:high]), default=(0, 0))[1]
        return pool_pair(pool)

    def _rows(self, start: int, size: int, inside: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rows, place = [], start
        for block in inside:
            if block["address"] > place:
                rows.append(_free_piece(place, block["address"] - place))
            state = "active_allocated" if block["free_requested_index"] is None else "active_pending_free"
            rows.append(
                {
                    "address": block["address"],
                    "size": block["allocated_bytes"],
                    "requested_size": block["requested_bytes"],
                    "state": state,
                    "frames": self._words.frames(block),
                    "user_metadata": self._words.metadata(block),
                }
            )
            place = block["address"] + block["allocated_bytes"]
        if place < start + size:
            rows.append(_free_piece(place, start + size - place))
        return rows


def _own_segment(block: dict[str, Any], first_us: int) -> list[Event]:
    """Return a segment around one block: the viewer looks for one at every event, also where a device has none."""
    shared = {"addr": block["address"], "size": block["allocated_bytes"], "stream": block["stream"], "frames": []}
    begin = {"action": "segment_alloc", **shared, "time_us": _us(block["alloc_ns"], first_us)}
    if block["free_index"] is None:
        return [(block["alloc_index"], 0, begin)]
    end = {"action": "segment_free", **shared, "time_us": _us(block["free_ns"], first_us)}
    return [(block["alloc_index"], 0, begin), (block["free_index"], 4, end)]


def _marker(time_us: int) -> dict[str, Any]:
    return {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": time_us}


def _taken(action: str, piece: dict[str, Any], time_ns: int | None, first_us: int) -> dict[str, Any]:
    time_us = _us(time_ns, first_us)
    return {
        "action": action,
        "addr": piece["address"],
        "size": piece["bytes"],
        "stream": piece["stream"],
        "time_us": time_us,
    }


def _mapped(action: str, piece: dict[str, Any], part: Range, first_us: int) -> dict[str, Any]:
    time_ns = piece["alloc_ns" if action == "segment_map" else "free_ns"]
    return _taken(action, {**piece, "address": part[0], "bytes": part[1] - part[0]}, time_ns, first_us)


def _without(ranges: list[Range], others: list[Range]) -> list[Range]:
    """Return what of ``ranges`` is in none of ``others``."""
    for low, high in others:
        cut = [((start, min(end, low)), (max(start, high), end)) for start, end in ranges]
        ranges = [part for parts in cut for part in parts if part[0] < part[1]]
    return ranges


def _address(row: dict[str, Any]) -> int:
    return int(row["address"])


def _free_piece(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}


def _joined(pieces: list[dict[str, Any]]) -> list[tuple[int, int, int, str]]:
    """Return address, bytes, stream and pool by address; mapped pieces of one expandable segment are one."""
    joined: list[tuple[int, int, int, str]] = []
    for piece in sorted(pieces, key=_address):
        start, size, stream, pool = piece["address"], piece["bytes"], piece["stream"], piece["pool"]
        if (
            joined
            and pool == "expandable" == joined[-1][3]
            and sum(joined[-1][:2]) == start
            and joined[-1][2] == stream
        ):
            start, size = joined[-1][0], joined.pop()[1] + size
        joined.append((start, size, stream, pool))
    return joined


def _us(time_ns: int | None, first_us: int) -> int:
    """Return a time in microseconds; what has none is put at the first."""
    return first_us if time_ns is None else time_ns // 1000
