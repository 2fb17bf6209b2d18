"""The recorder of a simulated GPU: the simulated allocator's events, in the format of a real GPU's history."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

import torch

from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.phases import ModuleContext
from gpuledger.collect.attribution.recorder import FollowsOperators
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.model.journal.journal import REASONS, BlockState, Part
from gpuledger.simulate.gpu.device import SimulatedDevice

DEVICE_IDX = 0
_COLUMNS = ("action", "address", "bytes", "stream", "time_ns", "tag_id", "operator_id")


class SimulatedRecorder:
    """Provides the session with the events of the simulated allocator.

    Args:
        device: The GPU.
        tags: Assigns ids to tags.
        context: Receives each token, too, so that errors can name the current module.
    """

    kind = "virtual"

    def __init__(self, device: SimulatedDevice, tags: TagTable, context: ModuleContext) -> None:
        self.set_token: Callable[[str], None] = self._set_token
        self._device = device
        self._context = context
        self._tags = tags
        self._open = False
        self._snapshots = 0

    def _set_token(self, token: str) -> None:
        self._device.of_thread.token = token
        self._context.set_token(token)

    def place_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return ``(device_idx, address)`` of a tensor on the GPU; None for any other tensor."""
        address = self._device.address(tensor)
        return (DEVICE_IDX, address) if address else None

    known_place = place_of

    def follow(self, operators: FollowsOperators) -> None:
        """Tell an object of every operator on the GPU and of the storages that are freed."""
        operators.address_of = self._device.address
        self._device.followed = operators

    def can_open(self) -> bool:
        """Return True: simulated memory is recorded beside any mode."""
        return True

    def open(self, part: Part, living: LiveObjects) -> None:
        """Begin with an empty GPU."""
        self._open = True
        settings = self._device.allocator.settings
        part.facts["allocator_settings"] = {
            "expandable_segments": settings.expandable,
            "max_split_size": -1 if settings.max_split_bytes is None else settings.max_split_bytes,
            "roundup_power2_divisions": {str(size >> 20): number for size, number in settings.power2_divisions},
        }
        self._note_snapshot(part, "open")

    def set_stacks(self, on: bool) -> None:
        """Do nothing: stacks are not recorded."""

    def counts(self, devices: Collection[int] | None = None) -> dict[int, tuple[int, int]]:
        """Return ``device_idx -> (allocations, frees)`` since the process started, of all devices."""
        counters = self._device.counters
        return {DEVICE_IDX: (counters.alloc_count, counters.free_count)}

    def see_resized(self, tensors: Iterable[object]) -> None:
        """Do nothing: the simulated GPU follows storages that are resized."""

    def read_counters(self, part: Part, step: int, reason: str, t_ns: int) -> None:
        """Append the simulated allocator's counters."""
        counters = self._device.counters
        part.add_counters(
            t_ns,
            DEVICE_IDX,
            step,
            reason,
            alloc_count=counters.alloc_count,
            free_count=counters.free_count,
            allocated_bytes=counters.allocated_bytes,
            requested_bytes=counters.requested_bytes,
            active_bytes=counters.active_bytes,
            reserved_bytes=counters.reserved_bytes,
            peak_allocated_bytes=counters.peak_allocated_bytes,
            peak_reserved_bytes=counters.peak_reserved_bytes,
        )

    def drain(self, part: Part, reason: str) -> None:
        """Move the events into ``part``."""
        device = self._device
        events, device.events = device.events, []
        part.facts["operators"] = list(device.operators)
        if reason != "step_end":
            self._note_snapshot(part, reason, len(events))
        if not events:
            return
        columns = dict(zip(_COLUMNS, zip(*events, strict=True), strict=True))
        tag_ids = [self._tags.number(token) for token in columns.pop("tag_id")]
        part.add("events", device_idx=DEVICE_IDX, tag_id=tag_ids, stack_id=-1, **columns)

    def close(self, part: Part, reason: str) -> bool:
        """Move the last events and a closing snapshot into ``part``."""
        if self._open:
            self._open = False
            self.drain(part, reason)
        return True

    def _note_snapshot(self, part: Part, reason: str, event_count: int = 0) -> None:
        """Write the live allocations, so that the replay can be checked against them."""
        part.add(
            "snapshots",
            snapshot_id=self._snapshots,
            reason=REASONS.index(reason),
            device_idx=DEVICE_IDX,
            event_count=event_count,
            t_ns=time.time_ns(),
        )
        live = list(self._device.allocator.live.values())
        if live:
            part.add(
                "snapshot_blocks",
                snapshot_id=self._snapshots,
                device_idx=DEVICE_IDX,
                segment_address=[block.address for block in live],
                address=[block.address for block in live],
                bytes=[block.size for block in live],
                requested_bytes=[block.requested_bytes for block in live],
                state=BlockState.ALLOCATED,
                stack_id=-1,
            )
        self._snapshots += 1
