"""Record CUDA memory with the caching allocator's own history, read in one piece per drain."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.attribution.tensor_observations import storage_place
from gpuledger.collect.memory.captured_pools import captured_pools
from gpuledger.collect.memory.history_columns import Entry, HistoryStacks, event_columns, signed
from gpuledger.model.journal.journal import REASONS, TORCH_STATES, BlockState, Part
from gpuledger.model.pools import pool_number

MAX_ENTRIES = 2_000_000
"""Maximum number of events that the allocator keeps between two drains (about 600 bytes each, with their stacks).

Drains come long before.
"""

NO_EVENTS = (
    'The program keeps PyTorch\'s memory history without events (enabled="state"), so what it allocated meanwhile is '
    'not in this run. With enabled="all", the history has them.'
)

_BEFORE_ALLOCATIONS = ("open", "collective_start", "collective_end")
"""Reasons for which counters are written of a device without allocations, too."""


class CudaRecorder:
    """Records every CUDA device of this process with the caching allocator's history.

    Call :meth:`open` only after CUDA is initialized (from ``torch.cuda._lazy_call``), because it would initialize CUDA
    itself.

    There is one history in a process. One that the program keeps itself is read, and neither cleared nor stopped.

    Args:
        stacks: Assigns ids to Python stacks.
        tags: Assigns ids to the tokens of allocations.
        reads_programs: Whether the program keeps a history already.
    """

    kind = "cuda-history"
    place_of = known_place = staticmethod(storage_place)

    def __init__(self, stacks: StackTable, tags: TagTable, *, reads_programs: bool = False) -> None:
        self.set_token: Callable[[str], None] = torch_private.set_memory_metadata()
        self._stacks = HistoryStacks(stacks)
        self._tags = tags
        self._open = False
        self._snapshots = 0
        self._with_stacks = reads_programs
        self._blocks_kept = False
        self._programs = _ProgramsHistory() if reads_programs else None
        self._first_counts: dict[int, tuple[int, int]] = {}

    def can_open(self) -> bool:
        """Return True: the allocator's history can start at any time."""
        return True

    def open(self, part: Part, living: LiveObjects) -> None:
        """Start the history and record the live allocations."""
        if self._programs is None:
            torch_private.start_history(stacks=False, max_entries=MAX_ENTRIES, clear=True)
        else:
            self._read_from(torch_private.full_snapshot(), self._programs)
        self._open = True
        part.facts["allocator_settings"] = self._note_snapshot(part, torch_private.light_snapshot(), "open")

    def set_stacks(self, on: bool) -> None:
        """Start or stop recording Python stacks of allocations. Recorded stacks are kept."""
        if self._open and on != self._with_stacks and self._programs is None:
            torch_private.start_history(stacks=on, max_entries=MAX_ENTRIES, clear=False)
            self._with_stacks = on

    def devices(self) -> range:
        """Return the indices of the CUDA devices visible to this process."""
        return range(torch.cuda.device_count())

    def counts(self, devices: Collection[int] | None = None) -> dict[int, tuple[int, int]]:
        """Return ``device_idx -> (allocations, frees requested)`` since the process started, by default of all."""
        found = {}
        for device_idx in self.devices() if devices is None else devices:
            if device_idx < 0:
                continue
            counted = torch_private.memory_stats(device_idx).get("allocation", {}).get("all")
            if counted is not None:
                found[device_idx] = (counted["allocated"], counted["freed"])
        return found

    def see_resized(self, tensors: Iterable[object]) -> None:
        """Do nothing: the allocator's history has these events."""

    def read_counters(self, part: Part, step: int, reason: str, t_ns: int) -> None:
        """Append the allocator's counters of every device that has allocated memory."""
        for device_idx in self.devices():
            stats = torch_private.memory_stats(device_idx)
            if not stats or (not stats["allocation"]["all"]["allocated"] and reason not in _BEFORE_ALLOCATIONS):
                continue
            part.add_counters(
                t_ns,
                device_idx,
                step,
                reason,
                alloc_count=stats["allocation"]["all"]["allocated"],
                free_count=stats["allocation"]["all"]["freed"],
                allocated_bytes=stats["allocated_bytes"]["all"]["current"],
                requested_bytes=stats["requested_bytes"]["all"]["current"],
                active_bytes=stats["active_bytes"]["all"]["current"],
                reserved_bytes=stats["reserved_bytes"]["all"]["current"],
                peak_allocated_bytes=stats["allocated_bytes"]["all"]["peak"],
                peak_reserved_bytes=stats["reserved_bytes"]["all"]["peak"],
            )

    def drain(self, part: Part, reason: str) -> None:
        """Move the history into ``part`` and clear it.

        Segments and blocks are written only at the end of the first step: they are many, and would be most of what is
        written at each step.
        """
        snapshot = torch_private.full_snapshot()
        if self._programs is None:
            torch_private.start_history(stacks=self._with_stacks, max_entries=MAX_ENTRIES, clear=True)
        else:
            self._programs.take_new(snapshot)
        if reason != "step_end" or not self._blocks_kept:
            self._blocks_kept = True
            self._note_snapshot(part, snapshot, reason)
        self._note_events(part, snapshot)

    def close(self, part: Part, reason: str) -> bool:
        """Write the last of the history, and stop it."""
        if self._open:
            try:
                snapshot = torch_private.full_snapshot()
            finally:
                if self._programs is None:
                    torch_private.stop_history()
                self._open = False
            self.set_token("")
            if self._programs is not None:
                self._programs.take_new(snapshot)
            self._note_snapshot(part, snapshot, reason)
            self._note_events(part, snapshot)
            if self._programs is not None and not self._programs.has_events and self.counts() != self._first_counts:
                part.notes.append(NO_EVENTS)
        return True

    def read_programs(self, part: Part) -> None:
        """Read the history that the program is about to start, or to change, from now on."""
        if not self._open:
            return
        snapshot = torch_private.full_snapshot()
        if self._programs is None:
            torch_private.stop_history()
            self._note_events(part, snapshot)
            self._programs, self._with_stacks = _ProgramsHistory(), True
            self._read_from(snapshot, self._programs)
        else:  # it may be cleared
            self._programs.take_new(snapshot)
            self._note_events(part, snapshot)

    def _read_from(self, snapshot: dict[str, Any], programs: _ProgramsHistory) -> None:
        """Read the program's history from a snapshot on."""
        programs.take_new(snapshot)
        programs.has_events = False
        self._first_counts = self.counts()

    # -- snapshots into columns -----------------------------------------------------------------------------------

    def _note_events(self, part: Part, snapshot: dict[str, Any]) -> None:
        for device_idx, trace in enumerate(snapshot["device_traces"]):
            if trace:
                stacks = self._stacks if self._with_stacks else None
                part.add("events", device_idx=device_idx, **event_columns(trace, self._tags, stacks))

    def _note_snapshot(self, part: Part, snapshot: dict[str, Any], reason: str) -> dict[str, Any]:
        """Append a snapshot's segments and blocks. Return the allocator settings that it contains."""
        number = self._snapshots
        self._snapshots += 1
        segments = snapshot["segments"]
        devices = sorted({segment["device"] for segment in segments} | set(self.devices()))
        part.add(
            "snapshots",
            snapshot_id=number,
            reason=REASONS.index(reason),
            device_idx=devices,
            event_count=[len(t) for t in (*snapshot["device_traces"], *[()] * len(devices))][: len(devices)],
            t_ns=time.time_ns(),
        )
        if segments:
            columns = segment_columns(segments)
            part.add("snapshot_segments", snapshot_id=number, **columns)
            part.facts["captured_pools"] = sorted(captured_pools(columns["pool_id"]))
            part.add("snapshot_blocks", snapshot_id=number, **block_columns(segments))
        settings: dict[str, Any] = snapshot.get("allocator_settings") or {}
        return settings


class _ProgramsHistory:
    """Knows what was read of a history that is never cleared: per device the time of its last event, in µs.

    Several events can have the same time, so the number of those that were read is known, too.
    """

    def __init__(self) -> None:
        self.has_events = False
        """Whether an event was read."""
        self._read: dict[int, tuple[int, int]] = {}

    def take_new(self, snapshot: dict[str, Any]) -> None:
        """Remove the events from a snapshot that an earlier one had."""
        for device_idx, trace in enumerate(snapshot["device_traces"]):
            last_us, count = self._read.get(device_idx, (-1, 0))
            del trace[: bisect_left(trace, last_us, key=_time_us)]
            del trace[: min(count, _count_at(trace, last_us))]
            if trace:
                self.has_events = True
                now_us = _time_us(trace[-1])
                same = sum(_time_us(entry) == now_us for entry in trace)
                self._read[device_idx] = now_us, same + (count if now_us == last_us else 0)


def _time_us(entry: Entry) -> int:
    return int(entry["time_us"])


def _count_at(trace: list[Entry], time_us: int) -> int:
    """Return how many events at the beginning of a history have a time."""
    count = 0
    while count < len(trace) and _time_us(trace[count]) == time_us:
        count += 1
    return count


def segment_columns(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return columns of the journal with the segments of a snapshot."""
    return {
        "device_idx": [segment["device"] for segment in segments],
        "address": [segment["address"] for segment in segments],
        "bytes": [segment["total_size"] for segment in segments],
        "stream": [signed(segment["stream"]) for segment in segments],
        "small": [segment["segment_type"] == "small" for segment in segments],
        "expandable": [bool(segment.get("is_expandable")) for segment in segments],
        "pool_id": [pool_number(*segment.get("segment_pool_id", (0, 0))) for segment in segments],
    }


def block_columns(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return columns of the journal with the blocks of a snapshot's segments."""
    rows = [
        (
            segment["device"],
            segment["address"],
            block["address"],
            block["size"],
            block["requested_size"],
            TORCH_STATES.get(block["state"], BlockState.ALLOCATED),
            -1,
        )
        for segment in segments
        for block in segment["blocks"]
    ]
    names = ("device_idx", "segment_address", "address", "bytes", "requested_bytes", "state", "stack_id")
    return dict(zip(names, zip(*rows, strict=True), strict=True))
