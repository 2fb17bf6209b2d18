"""Record memory with a dispatch mode: every new storage that an operator creates, and its end.

Used for CPU tensors, and for CUDA tensors if the allocator cannot record a history.

Recorded: storages created by operators of the thread that opened the recorder. A dispatch mode belongs to one thread;
on the CPU, backward runs in the calling thread. Not recorded: memory that an operator uses internally, tensors of other
threads, and tensors created without an operator (``torch.from_numpy``, a C++ extension) until an operator takes them as
input. The stack of such a tensor is that of this first use.

A tensor that wraps others (:func:`is_wrapper`) has no memory of its own. Its class runs operators on the tensors
inside, and those operators are recorded.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.inference_blocks import may_enter_mode
from gpuledger.collect.adapter.program_objects import (
    device_of,
    is_wrapper,
    layout_of,
    local_tensors,
    storage_of,
    without_overrides,
)
from gpuledger.collect.attribution.kept_blocks import KeptBlocks
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.attribution.tensor_observations import storage_place
from gpuledger.collect.memory.dispatch_mode import OperatorMode
from gpuledger.collect.memory.operator_times import OperatorTimes
from gpuledger.model.journal.journal import REASONS, Action, BlockState, Part

_PSEUDO_ADDRESS = 1 << 56
"""First address given to storages without an address of their own (fake, meta), one after another."""


OPENING = 0
"""Id of the opening snapshot."""

MOST_EVENTS = 200_000
"""Number of pending events at which the recorder asks to be drained."""

UNSEEN_THREADS = (
    "Modules also ran in another thread. The dispatch-mode recorder does not see the tensors of that thread."
)


class _Token(threading.local):
    value = ""


class _Death(weakref.ref[Any]):
    """A weak reference to a storage that stores the storage's address, and whether it was allocated while recording."""

    __slots__ = ("is_new", "key")
    key: int
    is_new: bool


class DispatchRecorder:
    """Records storages of the given device types.

    Args:
        stacks: Assigns ids to Python stacks.
        tags: Assigns ids to tokens.
        guard: Handles exceptions raised in gpuledger's code.
        devices: Device types to record.

    The weak references' callback is a C function (``deque.append``); the end of a storage is recorded at the next
    operator or token. In a callback written in Python, a signal handler of the program could run, and its exception
    would be lost.
    """

    kind = "dispatch"
    place_of = staticmethod(storage_place)

    def __init__(
        self,
        stacks: StackTable,
        tags: TagTable,
        guard: Guard,
        devices: Iterable[str] = ("cpu",),
    ) -> None:
        self.set_token: Callable[[str], None] = self._set_token
        self.on_full: Callable[[], None] = lambda: None
        self.on_limit: Callable[[], None] = lambda: None
        self.operators_left = sys.maxsize
        self.kept: KeptBlocks | None = None
        self._stacks = stacks
        self._tags = tags
        self.guard = guard
        self.times: OperatorTimes | None = None
        self._kinds = frozenset(devices)
        self._token = _Token()
        self._thread = threading.get_ident()
        self._unseen = False
        self._mode: OperatorMode | None = None
        self._open = False
        self._is_paused = False
        self._with_stacks = False
        self._pid = os.getpid()
        self._live: dict[int, tuple[_Death, int, int, int]] = {}
        self._ended: deque[_Death] = deque()
        self._events: list[tuple[int, int, int, int, int, str, int, int]] = []
        self._operators: dict[Any, int] = {}
        self._told_operators = 0
        self._held: dict[int, list[int]] = {}
        self._next_pseudo = _PSEUDO_ADDRESS

    # -- the protocol -----------------------------------------------------------------------------------------------

    def _set_token(self, token: str) -> None:
        if self._ended:
            self._note_ended()
        self._token.value = token
        if threading.get_ident() != self._thread and not self._unseen:
            # autograd's threads get the caller's modes, so they are recorded
            self._unseen = not torch_private.has_dispatch_mode()

    def can_open(self) -> bool:
        """Return whether no dispatch mode and no profiler of the program is active.

        A mode of the program removes the innermost mode when it ends, which would be this one. A profiler would count
        operators twice.
        """
        return not (torch_private.has_dispatch_mode() or torch_private.is_profiling())

    def open(self, part: Part, living: LiveObjects) -> None:
        """Record the live storages, and push the mode on this thread's stack of modes."""
        self._thread = threading.get_ident()
        self._write_opening(part, living)
        self._open = True
        self._enter_mode()

    def _enter_mode(self) -> None:
        self._mode = OperatorMode(self, self.guard)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def set_stacks(self, on: bool) -> None:
        """Start or stop recording Python stacks."""
        self._with_stacks = on

    def time_operators(self) -> OperatorTimes:
        """Start measuring the time of operators. Return the object that keeps it."""
        self.times = OperatorTimes(self._stacks, self.guard.absorbs)
        return self.times

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return ``device_idx -> (allocations, frees)`` since the recorder opened."""
        return {device_idx: (counted[0], counted[1]) for device_idx, counted in self._counted().items()}

    def _counted(self) -> dict[int, list[int]]:
        """Return allocations, frees, bytes and peak bytes by device; zeros before the first event."""
        self._note_ended()
        return self._held or {-1: [0, 0, 0, 0]}

    def read_counters(self, part: Part, step: int, reason: str, t_ns: int) -> None:
        """Append the recorder's own counters, because the CPU allocator has none."""
        for device_idx, (made, gone, now_bytes, peak_bytes) in self._counted().items():
            part.add_counters(
                t_ns,
                device_idx,
                step,
                reason,
                alloc_count=made,
                free_count=gone,
                allocated_bytes=now_bytes,
                requested_bytes=now_bytes,
                active_bytes=now_bytes,
                reserved_bytes=now_bytes,
                peak_allocated_bytes=peak_bytes,
                peak_reserved_bytes=peak_bytes,
            )

    def drain(self, part: Part, reason: str) -> None:
        """Move the events into ``part``."""
        self._note_ended()
        events, self._events = self._events, []
        if self._unseen:
            part.notes.append(UNSEEN_THREADS)
        if len(self._operators) != self._told_operators:
            self._told_operators = len(self._operators)
            part.facts["operators"] = [str(operator) for operator in self._operators]
        if not events:
            return
        names = ("device_idx", "action", "address", "bytes", "time_ns", "tag_id", "stack_id", "operator_id")
        columns = dict(zip(names, zip(*events, strict=True), strict=True))
        tag_ids = [self._tags.number(token) for token in columns.pop("tag_id")]
        part.add("events", stream=0, tag_id=tag_ids, **columns)

    def close(self, part: Part, reason: str) -> bool:
        """Remove the mode and write the last events. If the mode could not be removed, call it again.

        Returns:
            False if the mode cannot be removed now: it is handling an operator, it belongs to another thread, or
            backward is running, which would restore it.
        """
        was_open = self._open
        if self._mode is not None:
            self._mode.retire()
            if self._mode.take_out(anyway=not was_open):
                self._mode = None
        if self._open:
            self.drain(part, reason)
            self._open = False
            alive = [(reference, address) for reference, _, address, _ in self._live.values() if reference.is_new]
            self.kept, self._ended = KeptBlocks(alive, self._ended), deque()
            self._live.clear()
        return self._mode is None

    def pause(self) -> None:
        """Record no more operators until :meth:`resume`, and let them run at their own speed. Frees are recorded."""
        self._is_paused = True
        if self._mode is not None:
            self._mode.leave_soon()

    def resume(self, living: LiveObjects) -> bool:
        """Record operators again, and the live storages that are unknown. Return False if that is not possible here."""
        if not self._is_paused or threading.get_ident() != self._thread or torch_private.is_in_backward():
            return not self._is_paused
        if self._mode is None or self._mode.has_left:
            if not (self.can_open() and may_enter_mode()):
                return False
            self._enter_mode()
        else:
            self._mode.come_back(self)
        self._is_paused = False
        for tensor in living.tensors():
            self._add(self._begin(tensor), -1, -1)
        return True

    def see_resized(self, tensors: Iterable[object]) -> None:
        """Record storages that were resized without an operator."""
        if not self._is_paused:
            self.see(None, (), tensors)

    # -- storages ---------------------------------------------------------------------------------------------------

    def see(self, operator: Any, results: Any, arguments: Any) -> None:
        """Record the new storages among an operator's results, and the unknown ones among its arguments."""
        try:
            if os.getpid() != self._pid:
                return
            with without_overrides():
                if self._ended:
                    self._note_ended()
                for tensor in local_tensors(arguments):
                    self._note(tensor, None)
                for tensor in local_tensors(results):
                    self._note(tensor, operator)
            self.operators_left -= 1
            if len(self._events) > MOST_EVENTS and threading.get_ident() == self._thread:
                self.on_full()
            if self.operators_left < 0 and threading.get_ident() == self._thread and not self._is_paused:
                self.on_limit()
        except RecursionError:
            self.guard.lacked_room = True
        except BaseException as error:
            if not self.guard.absorbs(error):
                raise

    def sees_inside(self, kinds: Iterable[type], arguments: Any) -> bool:
        """Return whether one of the classes is a wrapper. Record the unknown storages inside the arguments then."""
        try:
            if not any(map(is_wrapper, kinds)):
                return False
        except RecursionError:
            self.guard.lacked_room = True
            return False
        except BaseException as error:
            if not self.guard.absorbs(error):
                raise
            return False
        self.see(None, (), arguments)
        return True

    def see_made(self, tensor: torch.Tensor) -> None:
        """Record a buffer that compiled code has allocated without the dispatcher."""
        if os.getpid() == self._pid and not self._is_paused:
            self._add(self._begin(tensor), -1, -1)

    def _write_opening(self, part: Part, living: LiveObjects) -> None:
        """Write the live storages into ``part``, as the opening snapshot."""
        for tensor in living.tensors():
            self._begin(tensor)
        found = [(device_idx, address, size_bytes) for _, device_idx, address, size_bytes in self._live.values()]
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

    def _note(self, tensor: torch.Tensor, operator: Any) -> None:
        """Record an unknown storage. ``operator`` is None if it was not created just now."""
        begun = self._begin(tensor)
        if begun is not None:
            stack_id = self._stack_id() if self._with_stacks else -1
            self._add(begun, stack_id, -1 if operator is None else self._operator_id(operator))

    def _add(self, begun: tuple[int, int, int] | None, stack_id: int, operator_id: int) -> None:
        """Record the allocation of a storage that :meth:`_begin` has returned."""
        if begun is not None:
            device_idx, address, size_bytes = begun
            now_ns, token = time.time_ns(), self._token.value
            self._count(device_idx, size_bytes)
            self._events.append((device_idx, Action.ALLOC, address, size_bytes, now_ns, token, stack_id, operator_id))

    def _begin(self, tensor: torch.Tensor) -> tuple[int, int, int] | None:
        """Return device, address and bytes of a tensor's storage; None if it has none or is already known."""
        device = device_of(tensor)
        if device.type not in self._kinds or layout_of(tensor) is not torch.strided:
            return None
        if self._ended:  # a freed storage can have had the same address
            self._note_ended()
        try:
            storage = storage_of(tensor)
            size_bytes = storage.nbytes()
            fake = storage.device.type == "meta"  # data_ptr() of a fake tensor prints a warning
            address = 0 if fake else storage.data_ptr()
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
        address = address or self._pseudo_address(size_bytes)
        reference = _Death(storage, self._ended.append)
        reference.key, reference.is_new = key, self._open
        self._live[key] = (reference, device_idx, address, size_bytes)
        return device_idx, address, size_bytes

    def _note_ended(self) -> None:
        """Record the storages freed since the last call."""
        while self._ended:
            try:
                ended = self._ended.popleft()
            except IndexError:  # another thread has removed it
                return
            self._drop(ended)

    def _drop(self, reference: _Death) -> None:
        """Record that a storage was freed, unless another storage now has its address."""
        known = self._live.get(reference.key)
        if known is None or known[0] is not reference:
            return
        del self._live[reference.key]
        if not self._open or os.getpid() != self._pid:
            return
        _, device_idx, address, size_bytes = known
        self._count(device_idx, -size_bytes)
        now_ns, tag = time.time_ns(), self._token.value
        self._events.append((device_idx, Action.FREE_REQUESTED, address, size_bytes, now_ns, tag, -1, -1))
        self._events.append((device_idx, Action.FREE_COMPLETED, address, size_bytes, now_ns, tag, -1, -1))

    def _count(self, device_idx: int, change_bytes: int) -> None:
        counted = self._held.setdefault(device_idx, [0, 0, 0, 0])
        counted[0 if change_bytes > 0 else 1] += 1
        counted[2] += change_bytes
        counted[3] = max(counted[3], counted[2])

    def _pseudo_address(self, size_bytes: int) -> int:
        address = self._next_pseudo
        self._next_pseudo += -(-size_bytes // 64) * 64
        return address

    def _operator_id(self, operator: Any) -> int:
        number = self._operators.get(operator)
        if number is None:
            number = self._operators[operator] = len(self._operators)
        return number

    def _stack_id(self) -> int:
        # the frame below the mode's own; autograd's threads have none
        return self._stacks.intern_frame(sys._getframe(3).f_back)
