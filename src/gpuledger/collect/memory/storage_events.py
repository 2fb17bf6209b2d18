"""The storages that a dispatch recorder knows, and the events of their begin and end."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpuledger.collect.adapter.held_tensors import KeyedReference
from gpuledger.collect.adapter.program_objects import device_of, layout_of, storage_of
from gpuledger.collect.attribution.kept_blocks import KeptBlocks
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.model.journal.journal import REASONS, Action, BlockState, Part

_PSEUDO_ADDRESS = 1 << 56
"""First address given to storages without an address of their own, one after another."""


OPENING = 0
"""Id of the opening snapshot."""


class StorageEvents:
    """Live storages by identity, counters by device, and events that were not written yet.

    One thread at a time may call the methods that add events: :meth:`begin`, :meth:`add` and :meth:`note_ended`.

    The weak references' callback is a C function (``deque.append``); the end of a storage is recorded at the next
    operator or token. In a callback written in Python, a signal handler of the program could run, and its exception
    would be lost.

    Args:
        kinds: Device types to record.
        token: Returns the calling thread's token.
    """

    def __init__(self, kinds: Iterable[str], token: Callable[[], str]) -> None:
        self.is_open = False
        self._is_final = False
        self.on_end: Callable[[int], None] = lambda _address: None
        """Called with the address of a storage that was freed."""
        self._kinds = frozenset(kinds)
        self._token = token
        self._pid = os.getpid()
        self._live: dict[int, tuple[KeyedReference, int, int, int, bool]] = {}
        """Reference, device, address and bytes, and whether the storage was allocated while recording."""
        self._at: dict[int, int] = {}
        """Address -> key of the newest storage that was seen there."""
        self.ended: deque[KeyedReference] = deque()
        """Storages that were freed and have no event yet."""
        self._events: list[tuple[int, int, int, int, int, str, int, int]] = []
        self._operators: dict[Any, int] = {}
        self._told_operators = 0
        self._held: dict[int, list[int]] = {}
        self._next_pseudo = _PSEUDO_ADDRESS

    @property
    def waiting(self) -> int:
        """Return the number of events that were not written yet."""
        return len(self._events)

    def counted(self) -> dict[int, list[int]]:
        """Return allocations, frees, bytes and peak bytes by device; zeros before the first event."""
        return self._held or {-1: [0, 0, 0, 0]}

    def drain(self, part: Part, tags: TagTable) -> None:
        """Move the events into ``part``."""
        events, self._events = self._events, []
        if len(self._operators) != self._told_operators:
            self._told_operators = len(self._operators)
            part.facts["operators"] = [str(operator) for operator in list(self._operators)]
        if not events:
            return
        names = ("device_idx", "action", "address", "bytes", "time_ns", "tag_id", "stack_id", "operator_id")
        columns = dict(zip(names, zip(*events, strict=True), strict=True))
        tag_ids = [tags.number(token) for token in columns.pop("tag_id")]
        part.add("events", stream=0, tag_id=tag_ids, **columns)

    def close(self) -> KeptBlocks:
        """Record no more ends. Return the blocks that are alive and were allocated while recording."""
        self.is_open = False
        alive = [(reference, address) for reference, _, address, _, is_new in list(self._live.values()) if is_new]
        kept, self.ended = KeptBlocks(alive, self.ended), deque()
        self._live.clear()
        self._at.clear()
        return kept

    def write_opening(self, part: Part, living: LiveObjects) -> None:
        """Write the live storages into ``part``, as the opening snapshot."""
        for tensor in living.tensors():
            self.begin(tensor)
        found = [row[1:4] for row in list(self._live.values())]
        for device_idx in sorted({row[0] for row in found}):
            address, size_bytes = zip(*[row[1:] for row in found if row[0] == device_idx], strict=True)
            self._held[device_idx] = [0, 0, sum(size_bytes), sum(size_bytes)]
            part.add(
                "snapshots",
                snapshot_id=OPENING,
                reason=REASONS.index("open"),
                device_idx=device_idx,
                event_count=0,
                t_ns=time.time_ns(),
            )
            part.add(
                "snapshot_blocks",
                snapshot_id=OPENING,
                device_idx=device_idx,
                segment_address=address,
                address=address,
                bytes=size_bytes,
                requested_bytes=size_bytes,
                state=BlockState.ALLOCATED,
                stack_id=-1,
            )

    def begin(self, tensor: torch.Tensor) -> tuple[int, int, int] | None:
        """Return device, address and bytes of a tensor's storage; None if it has none or is already known."""
        device = device_of(tensor)
        if device.type not in self._kinds or layout_of(tensor) is not torch.strided:
            return None
        if self.ended:  # a freed storage can have had the same address
            self.note_ended()
        try:
            storage = storage_of(tensor)
            if storage.device.type == "meta":  # a fake tensor, as of torch.export and Dynamo, has no memory
                return None
            size_bytes, address = storage.nbytes(), storage.data_ptr()
        except (RuntimeError, NotImplementedError):  # functional and wrapper tensors have no address
            return None
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            if known[3] == size_bytes and address in (0, known[2]):
                return None
            self._drop(known[0])  # resized, or moved to shared memory
        if not size_bytes:
            return None
        device_idx = -1 if device.index is None else device.index
        if address:
            self._drop_what_left(self._at.get(address, 0), address)
            self._at[address] = key
        address = address or self._pseudo_address(size_bytes)
        reference = KeyedReference(storage, self.ended.append)
        reference.key = key
        self._live[key] = (reference, device_idx, address, size_bytes, self.is_open)
        return device_idx, address, size_bytes

    def _drop_what_left(self, key: int, address: int) -> None:
        """Record that a storage has left its address, if it was resized since it was seen there.

        Storages that share memory, as of tensors of one array, stay.
        """
        known = self._live.get(key)
        if known is not None and known[2] == address:
            storage = known[0]()
            if storage is not None and (storage.nbytes() == 0 or storage.data_ptr() != address):
                self._drop(known[0])

    def finish(self) -> None:
        """Record what has ended, and nothing after it: the closing counters follow, and other threads go on."""
        self.note_ended()
        self._is_final = True

    def add(self, begun: tuple[int, int, int], stack_id: int, operator_id: int) -> None:
        """Record the allocation of a storage that :meth:`begin` has returned."""
        if self._is_final:
            return
        device_idx, address, size_bytes = begun
        now_ns, token = time.time_ns(), self._token()
        self._count(device_idx, size_bytes)
        self._events.append((device_idx, Action.ALLOC, address, size_bytes, now_ns, token, stack_id, operator_id))

    def note_ended(self) -> None:
        """Record the storages freed since the last call."""
        while self.ended:
            try:
                ended = self.ended.popleft()
            except IndexError:  # another thread has removed it
                return
            try:
                self._drop(ended)
            except RecursionError:  # nothing was recorded of it yet
                self.ended.appendleft(ended)
                raise

    def _drop(self, reference: KeyedReference) -> None:
        """Record that a storage was freed, unless another storage now has its address."""
        known = self._live.get(reference.key)
        if known is None or known[0] is not reference:
            return
        is_recorded = self.is_open and not self._is_final and os.getpid() == self._pid
        now_ns, tag = time.time_ns(), self._token()  # raises at the recursion limit, before anything is changed
        del self._live[reference.key]
        if not is_recorded:
            return
        _, device_idx, address, size_bytes, _ = known
        if self._at.get(address) == reference.key:
            del self._at[address]
        self._events.append((device_idx, Action.FREE_REQUESTED, address, size_bytes, now_ns, tag, -1, -1))
        self._events.append((device_idx, Action.FREE_COMPLETED, address, size_bytes, now_ns, tag, -1, -1))
        self._count(device_idx, -size_bytes)
        self.on_end(address)

    def _count(self, device_idx: int, change_bytes: int) -> None:
        counted = self._held.setdefault(device_idx, [0, 0, 0, 0])
        counted[0 if change_bytes > 0 else 1] += 1
        counted[2] += change_bytes
        if change_bytes > 0:
            counted[3] = max(counted[3], counted[2])

    def _pseudo_address(self, size_bytes: int) -> int:
        address = self._next_pseudo
        self._next_pseudo += -(-size_bytes // 64) * 64
        return address

    def operator_id(self, operator: Any) -> int:
        """Return the id of an operator."""
        number = self._operators.get(operator)
        if number is None:
            number = self._operators[operator] = len(self._operators)
        return number
