"""Record memory with a dispatch mode: every new storage that an operator creates, and its end.

Used for CPU tensors, and for CUDA tensors if the allocator cannot record a history.

Recorded: storages created by operators of the thread that opened the recorder, and of the threads that call modules
(:mod:`.thread_modes`). On the CPU, backward runs in the calling thread. Not recorded: memory that an operator uses
internally, tensors of threads that call no module, and tensors created without an operator (``torch.from_numpy``, a C++
extension) until an operator takes them as input. The stack of such a tensor is that of this first use.

A tensor that wraps others (:func:`is_wrapper`) has no memory of its own. Its class runs operators on the tensors
inside, and those operators are recorded.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from types import FrameType
from typing import Any

import torch

from gpuledger.collect.adapter import dispatch_modes, torch_private
from gpuledger.collect.adapter.dispatch_modes import may_enter_mode
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.program_objects import (
    is_wrapper,
    local_part,
    local_tensors,
    without_overrides,
)
from gpuledger.collect.attribution.kept_blocks import KeptBlocks
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.recorder import FollowsOperators
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.attribution.tensor_observations import StoragePlace, storage_place
from gpuledger.collect.memory.dispatch_mode import OperatorMode
from gpuledger.collect.memory.node_lines import NodeLines
from gpuledger.collect.memory.operator_times import OperatorTimes
from gpuledger.collect.memory.storage_events import StorageEvents
from gpuledger.collect.memory.thread_modes import ThreadModes
from gpuledger.model.journal.journal import Part

MOST_EVENTS = 200_000
"""Number of pending events at which the recorder asks to be drained."""

UNSEEN_THREADS = (
    "Modules also ran in another thread, inside a dispatch mode, a profiler or a function transform of the program. "
    "The tensors of that thread were not recorded."
)
BLOCKED = "Some tensors were not recorded, because threads of the program waited for each other."
LONGEST_WAIT_S = 2.0
"""Time for which a thread waits for another one that records an operator. That one can itself wait for this thread: in
a finalizer of the program, which Python calls between any two instructions."""


class _Token(threading.local):
    value = ""


class DispatchRecorder:
    """Records storages of the given device types.

    Args:
        stacks: Assigns ids to Python stacks.
        tags: Assigns ids to tokens.
        guard: Handles exceptions raised in gpuledger's code.
        devices: Device types to record.
    """

    kind = "dispatch"
    known_place = staticmethod(storage_place)

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
        self.on_error: Callable[[BaseException], None] = lambda _error: None
        """Called with the exception of an operator."""
        self.operators_left = sys.maxsize
        self.kept: KeptBlocks | None = None
        self._stacks = stacks
        self._lines = NodeLines(stacks)
        self._tags = tags
        self.guard = guard
        self.times: OperatorTimes | None = None
        self._token = _Token()
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        """Held while an event is added, so that events of threads have the order in which storages began and ended."""
        self._is_blocked = False
        self._unseen = False
        self._mode: OperatorMode | None = None
        self._threads = ThreadModes(self, guard)
        self._is_paused = False
        self._with_stacks = False
        self._pid = os.getpid()
        self.storages = StorageEvents(devices, lambda: self._token.value)
        self._followed: FollowsOperators | None = None

    # -- the protocol -----------------------------------------------------------------------------------------------

    def _set_token(self, token: str) -> None:
        if self.storages.ended:
            self._alone(self.storages.note_ended)
        self._token.value = token
        if threading.get_ident() != self._thread and self.storages.is_open and not self._is_paused:
            self._unseen = not self._threads.enter() or self._unseen

    def _alone(self, do: Callable[..., None], *args: Any) -> bool:
        """Call a function that adds or moves events while no other thread does. Return False if that would block."""
        is_alone = self._lock.acquire(timeout=0 if self._is_blocked else LONGEST_WAIT_S)
        if not is_alone:
            self._is_blocked = True
            return False
        try:
            do(*args)
        finally:
            self._lock.release()
        return True

    @property
    def _may_call(self) -> bool:
        """Return whether the calling thread is one of the program's, which can drain and pause: not autograd's."""
        return threading.get_ident() == self._thread or self._threads.is_here()

    def can_open(self) -> bool:
        """Return whether no dispatch mode and no profiler of the program is active.

        A mode of the program removes the innermost mode when it ends, which would be this one. A profiler would count
        operators twice.
        """
        return not (dispatch_modes.has_dispatch_mode() or torch_private.is_profiling())

    def open(self, part: Part, living: LiveObjects) -> None:
        """Record the live storages, and push the mode on this thread's stack of modes."""
        self._thread = threading.get_ident()
        self.storages.write_opening(part, living)
        self.storages.is_open = True
        self._lines.begin()
        self._enter_mode()

    def follow(self, operators: FollowsOperators) -> None:
        """Tell an object of every operator and of the storages that are freed."""
        self._followed, self.storages.on_end = operators, operators.forget

    def _enter_mode(self) -> None:
        self._mode = OperatorMode(self, self.guard)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def set_stacks(self, on: bool) -> None:
        """Start or stop recording Python stacks."""
        self._with_stacks = on

    def time_operators(self) -> OperatorTimes:
        """Start measuring the time of operators. Return the object that keeps it."""
        self.times = OperatorTimes(self._lines, lambda: self._token.value, self.guard.absorbs)
        return self.times

    def counts(self, devices: Collection[int] | None = None) -> dict[int, tuple[int, int]]:
        """Return ``device_idx -> (allocations, frees)`` since the recorder opened, of all devices."""
        return {device_idx: (made, gone) for device_idx, (made, gone, *_) in self._counted().items()}

    def _counted(self) -> dict[int, list[int]]:
        """Return allocations, frees, bytes and peak bytes by device; zeros before the first event."""
        self._alone(self.storages.note_ended)
        return dict(self.storages.counted())  # another thread can add a device

    def read_counters(self, part: Part, step: int, reason: str, t_ns: int) -> None:
        """Append the recorder's own counters, because the CPU allocator has none."""
        if reason == "close":
            self._alone(self.storages.finish)
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
        self._alone(self.storages.note_ended)
        if self._unseen:
            part.notes.append(UNSEEN_THREADS)
        if self._is_blocked:
            part.notes.append(BLOCKED)
        if not self._alone(self.storages.drain, part, self._tags):
            self.storages.drain(part, self._tags)

    def close(self, part: Part, reason: str) -> bool:
        """Remove the mode and write the last events. If the mode could not be removed, call it again.

        Returns:
            False if a mode cannot be removed now: it is handling an operator, it belongs to another thread, or backward
            is running, which would restore it.
        """
        was_open = self.storages.is_open
        if self._mode is not None:
            self._mode.retire()
            if self._mode.take_out(anyway=not was_open):
                self._mode = None
        self._threads.retire()
        are_out = self._threads.take_out()
        if self.storages.is_open and not self._alone(self._end, part, reason):
            self._end(part, reason)
        return self._mode is None and are_out

    def _end(self, part: Part, reason: str) -> None:
        self.drain(part, reason)
        self.kept = self.storages.close()

    def pause(self) -> None:
        """Record no more operators until :meth:`resume`, and let them run at their own speed. Frees are recorded."""
        self._is_paused = True
        self._threads.retire()
        if self._mode is not None:
            self._mode.leave_soon()

    def resume(self, living: LiveObjects) -> bool:
        """Record operators again, and the live storages that are unknown. Return False if that is not possible here."""
        if not self._is_paused or torch_private.is_in_backward():
            return not self._is_paused
        if threading.get_ident() != self._thread:
            if not self._threads.is_here():
                return False
        elif self._mode is None or self._mode.has_left:
            if not (self.can_open() and may_enter_mode()):
                return False
            self._enter_mode()
        else:
            self._mode.come_back(self)
        self._threads.come_back()
        self._lines.begin()
        self._is_paused = False
        self._alone(self._meet, living.tensors())
        return True

    def place_of(self, tensor: Any) -> StoragePlace | None:
        """Return ``(device_idx, address)`` of a tensor's storage. Record the storage if it is unknown."""
        place = storage_place(tensor)
        if place is not None and self.storages.is_open and not self._is_paused and os.getpid() == self._pid:
            self._alone(self._meet, (local_part(tensor),))
        return place

    def see_resized(self, tensors: Iterable[object]) -> None:
        """Record storages that were resized without an operator."""
        if not self._is_paused:
            self.see(None, (), list(tensors))

    # -- storages ---------------------------------------------------------------------------------------------------

    def see(self, operator: Any, results: Any, arguments: Any) -> None:
        """Record the new storages among an operator's results, and the unknown ones among its arguments."""
        try:
            if os.getpid() != self._pid:
                return
            with without_overrides():
                self._alone(self._note_all, operator, results, arguments)
            self.operators_left -= 1
            if self.storages.waiting > MOST_EVENTS and self._may_call:
                self.on_full()
            if self.operators_left < 0 and self._may_call and not self._is_paused:
                self.on_limit()
        except RecursionError:
            self.guard.lacked_room = True
        except BaseException as error:
            if not self.guard.absorbs(error):
                raise

    def see_error(self, error: BaseException) -> None:
        """Show the exception of an operator to :attr:`on_error`."""
        try:
            if os.getpid() == self._pid and self.storages.is_open and not self._is_paused and self._may_call:
                self.on_error(error)
        except RecursionError:
            self.guard.lacked_room = True
        except BaseException as own:
            if not self.guard.absorbs(own):
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
            self._alone(self._meet, (tensor,))

    def see_inputs(self, inputs: list[Any]) -> None:
        """Record the unknown storages among the inputs of compiled code, such as state that Dynamo has initialized."""
        if os.getpid() == self._pid and not self._is_paused:
            self._alone(self._meet, local_tensors(inputs))

    def _meet(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record the storages that were allocated without an operator that was seen."""
        for tensor in tensors:
            begun = self.storages.begin(tensor)
            if begun is not None:
                self.storages.add(begun, self._stacks.intern_frame(sys._getframe()) if self._with_stacks else -1, -1)

    def _note_all(self, operator: Any, results: Any, arguments: Any) -> None:
        if self.storages.ended:
            self.storages.note_ended()
        for tensor in local_tensors(arguments):
            self._note(tensor, None)
        for tensor in local_tensors(results):
            self._note(tensor, operator)
        if operator is not None and self._with_stacks:
            self._lines.saw(_caller())
        if operator is not None and self._followed is not None and self._followed.is_on:
            self._followed.see(operator, results, arguments)

    def _note(self, tensor: torch.Tensor, operator: Any) -> None:
        """Record an unknown storage. ``operator`` is None if it was not created just now."""
        begun = self.storages.begin(tensor)
        if begun is not None:
            stack_id = self._lines.stack_of(_caller(1)) if self._with_stacks else -1
            self.storages.add(begun, stack_id, -1 if operator is None else self.storages.operator_id(operator))


def _caller(depth: int = 0) -> FrameType | None:
    """Return the frame that has called an operator: that below the mode's own. Autograd's threads have none.

    Args:
        depth: Number of calls between this one and that of the operator's recording.
    """
    return sys._getframe(4 + depth).f_back
