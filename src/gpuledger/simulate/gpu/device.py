"""The simulated device: the storages on the GPU and their allocator."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.analyze.allocator.pools import LARGE_SEGMENT_BYTES, Counters
from gpuledger.collect.attribution.recorder import FollowsOperators
from gpuledger.model.journal.journal import Action
from gpuledger.simulate.catalogue import GpuModel
from gpuledger.simulate.conditions.decisions import ProgramProgress
from gpuledger.simulate.convolutions.convolutions import Held
from gpuledger.simulate.elsewhere import Elsewhere
from gpuledger.simulate.gpu.fusion import FusedTensors
from gpuledger.simulate.gpu.sparse.parts import parts_of
from gpuledger.simulate.gpu.threads import Handles, OfThread, ThreadMemory
from gpuledger.simulate.traits import CAPTURE, Size, Sizing, traits_of

Event = tuple[int, int, int, int, int, str, int]
"""Action, address, bytes, stream, time, token and operator number."""

REQUESTS = (Action.ALLOC, Action.FREE_REQUESTED)
"""Events that a program asks for; the others are the allocator's own."""


RESIZE = "storage.resize_"
"""Label of memory that a resized storage gets."""


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return a tensor's storage. If ``torch.func`` wrapped the tensor, it is that of the inner one."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return _storage_of(torch._C._functorch.get_unwrapped(tensor))


@cache
def label_of(operator: Any) -> str:
    """Return the name of an operator."""
    return str(operator)


class SimulatedDevice:
    """One GPU with its storages, by identity of the storage.

    Args:
        card: Memory and other figures of the GPU.
        allocator: Allocates the storages. Its events are kept here, each with the current token.
    """

    def __init__(self, card: GpuModel, allocator: CachingAllocator) -> None:
        self.card = card
        self.allocator = allocator
        self.place, self.count = torch.device("cuda", 0), 1
        """The device that its tensors report, and the number of GPUs of the host."""
        self.sizing = Sizing(traits_of(card))
        self.elsewhere = Elsewhere()
        self.events: list[Event] = []
        self.lock = threading.RLock()
        """Held while an operator runs, or a storage is freed: threads of the program take turns."""
        self.of_thread, self.handles_of_threads = OfThread(), Handles()
        self.overlap: ThreadMemory | None = None
        """What the threads of the program have; None if there is only one."""
        self.is_over = False
        """Whether the simulation has ended, so that other threads of the program end, too."""
        self.program_ended = False
        """Whether the program has ended. What it has then stays allocated, as in a process that ends."""
        self.pool: int | None = None
        """The stream that stands for the private pool of the CUDA graph that is captured."""
        self.operators: dict[str, int] = {}
        self.kept: dict[object, int] = {}
        self.convolutions: dict[tuple[int, ...], bool] = {}
        """Shape of a convolution -> whether all its cuDNN workspaces were measured."""
        self.uncompiled: dict[str, str] = {}
        """Place of a use of ``torch.compile``, as FILE:LINE -> its mode (:mod:`.compiling`)."""
        self.fusion = FusedTensors(self)
        self.module_now: Callable[[], str] = str
        """Returns the path of the running module; "" outside modules."""
        self.at_first_bytes: Callable[[], None] | None = None
        """Called once, before the first GPU allocation."""
        self.followed: FollowsOperators | None = None
        """Gets each operator on the GPU, and the addresses of the storages that are freed."""
        self.before_request: Callable[[], None] | None = None
        """Called before each request of memory."""
        self.copies: dict[int, Any] = {}
        """Storage -> its values, where they are known (:mod:`.values`)."""
        self.copied_bytes = 0
        self.decodes = False
        """Whether tokens are generated. The cache of a decoder grows, but not forever."""
        self.high_bytes = 0
        """The most allocated bytes since this was set to 0."""
        self.requested_bytes = 0
        """Bytes of all requests until now."""
        self.sizes: dict[int, int] | None = None
        """Size of requests -> bytes of all of that size; None if they are not counted."""
        self.largest_request_bytes = math.inf
        """A larger request fails, whatever the allocator has."""
        self.limit_frac = 1.0
        """Share of the GPU's memory to which the program limits itself."""
        self.when_full: Callable[[int, int, Any], int] | None = None
        """Called with bytes, stream and operator for a request that may exceed :attr:`room_bytes`. Returns the address
        of its block, and 0 if the operator goes without."""
        self.memory_errors = 0
        """Out-of-memory errors that the program has met."""
        self.steps = 0
        """Training steps that ended."""
        self._copied: dict[int, int] = {}
        self._requests = 0
        self._operator = -1
        self._live: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        self._held_with: dict[int, list[int]] = {}
        """Address -> those that are freed with it."""
        self._busy = False
        self._gone: list[int] = []
        allocator.memory.listen = self._heard

    @property
    def stream(self) -> int:
        """Return the current stream of this thread."""
        return self.of_thread.stream

    @property
    def in_backward(self) -> bool:
        """Return whether this thread runs a backward."""
        return self.of_thread.in_backward

    @property
    def handle(self) -> int:
        """Return the number of this thread's handle of a library; -1 in a backward, which has a thread of its own."""
        return -1 if self.in_backward else self.of_thread.number

    def begin_threads(self) -> None:
        """Note that the program has another thread from now on."""
        with self.lock:
            self.overlap = self.overlap or ThreadMemory(self.counters.requested_bytes)

    @property
    def counters(self) -> Counters:
        """Return the allocator's counters."""
        return self.allocator.counters

    def progress(self) -> ProgramProgress:
        """Return how far the program is."""
        return ProgramProgress(self.steps, self.counters.allocated_bytes)

    @property
    def allowed_bytes(self) -> int:
        """Return the bytes to which the program limits its reserved memory."""
        return int(self.limit_frac * self.card.available_bytes)

    @property
    def room_bytes(self) -> int:
        """Return the bytes that the program can reserve: beside context and libraries, and within its own limit."""
        card = self.card.with_handles(self.handles).with_limit(self.limit_frac)
        return card.usable_bytes - card.outside_bytes

    @property
    def handles(self) -> int:
        """Return the number of cuBLAS handles of the program."""
        return len({key[2] for key in self.kept if isinstance(key, tuple) and key[0] == "cublas"})

    def set_place(self, device: Any) -> None:
        """Report an index, or that of a device, as the current device's. Every index is this GPU."""
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index >= 0:
            self.place = torch.device("cuda", index)

    # -- storages ---------------------------------------------------------------------------------------------------

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the GPU."""
        if tensor.layout is not torch.strided:
            return parts_of(tensor) is not None
        return _storage_of(tensor)._cdata in self._live

    def address(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor's storage on the GPU; 0 if it is empty or not on the GPU."""
        if tensor.layout is not torch.strided:
            return 0
        known = self._live.get(_storage_of(tensor)._cdata)
        return known[1] if known else 0

    def adopt(self, tensor: torch.Tensor, operator: Any) -> None:
        """Allocate a tensor's storage on the GPU, unless it is there already with the same size."""
        if tensor.layout is not torch.strided:
            return
        storage = _storage_of(tensor)
        key, size_bytes = storage._cdata, storage.nbytes()
        known = self._live.get(key)
        if known is not None:
            if known[2] == size_bytes:
                return
            self._drop(key)
        address = self.malloc(size_bytes, operator) if size_bytes else 0
        reference = weakref.ref(storage, lambda _, key=key: self._drop(key))  # type: ignore[misc]
        self._live[key] = (reference, address, size_bytes)

    def adopt_later(self, tensor: torch.Tensor) -> None:
        """Hold a tensor on the GPU without memory, which is allocated later, if at all."""
        storage = _storage_of(tensor)
        key = storage._cdata
        reference = weakref.ref(storage, lambda _, key=key: self._drop(key))  # type: ignore[misc]
        self._live[key] = (reference, 0, storage.nbytes())

    def allocate(self, key: int, operator: Any) -> None:
        """Allocate a storage that was held without memory."""
        reference, address, size_bytes = self._live[key]
        if not address and size_bytes:
            self._live[key] = (reference, self.malloc(size_bytes, operator), size_bytes)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Follow a storage on the GPU that was resized without an operator: the new memory comes before the free."""
        with self.lock:
            self._resize(storage)

    def _resize(self, storage: torch.UntypedStorage) -> None:
        key, size_bytes = storage._cdata, storage.nbytes()
        known = self._live.get(key)
        if known is None or known[2] == size_bytes:
            return
        reference, before, _ = known
        self._live[key] = (reference, self.malloc(size_bytes, RESIZE) if size_bytes else 0, size_bytes)
        if before:
            self._operator = -1
            self._forget(before)
            self.allocator.free(before)

    def live_blocks(self) -> dict[int, tuple[int, object]]:
        """Return address -> bytes of the storages on the GPU, and what no other storage at that address has."""
        return {address: (size_bytes, made) for made, address, size_bytes in self._live.values() if address}

    def hold_with(self, address: int, sizes_bytes: Iterable[int], operator: Any) -> None:
        """Allocate blocks that stay as long as the storage with that address."""
        checked, self.before_request = self.before_request, None
        held = self._held_with.setdefault(address, [])
        try:
            held.extend([self.malloc(size, operator) for size in sizes_bytes])
        finally:
            self.before_request = checked

    def holds_more(self, address: int) -> bool:
        """Return whether blocks stay as long as the storage with that address, which is still there."""
        return address in self._held_with

    def keep_copy(self, key: int, copy: Any, size_bytes: int) -> None:
        """Keep the values of a storage until it is freed."""
        self.copied_bytes += size_bytes - self._copied.get(key, 0)
        self._copied[key] = size_bytes
        self.copies[key] = copy

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """Record that another stream uses a tensor."""
        with self.lock:
            address = self.address(tensor)
            if address:
                self.allocator.record_stream(address, stream)

    def finish_streams(self) -> None:
        """Complete the frees of blocks that other streams used."""
        with self.lock:
            self.allocator.finish_streams()

    def empty_cache(self) -> None:
        """Release every segment without a block in use."""
        with self.lock:
            self.allocator.empty_cache()

    def _drop(self, key: int) -> None:
        """Free a deleted storage. The garbage collector can call this during a malloc; then it is freed after that."""
        with self.lock:
            if self._busy:
                self._gone.append(key)
            else:
                self._drop_now(key)

    def _drop_now(self, key: int) -> None:
        if self.program_ended:
            return
        known = self._live.pop(key, None)
        self.fusion.forget(key)
        if key in self._copied:
            self.copies.pop(key, None)
            self.copied_bytes -= self._copied.pop(key)
        if known is not None and known[1]:
            self._operator = -1
            self._forget(known[1])
            for address in (known[1], *self._held_with.pop(known[1], ())):
                self.allocator.free(address)

    def _forget(self, address: int) -> None:
        if self.followed is not None:
            self.followed.forget(address)

    # -- bytes ------------------------------------------------------------------------------------------------------

    def malloc(self, size_bytes: int, operator: Any) -> int:
        """Return the address of a new block on the current stream.

        Raises:
            OutOfMemoryError: the GPU is out of memory.
            torch.OutOfMemoryError: it is larger than ``largest_request_bytes``, or than the room, and the program
                handles that. It can request less then.
        """
        if size_bytes > self.largest_request_bytes:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size_bytes / (1 << 30):.2f} GiB")
        at_first_bytes, self.at_first_bytes = self.at_first_bytes, None
        if at_first_bytes is not None:
            at_first_bytes()
        if self.before_request is not None:
            self.before_request()
        self._busy = True
        try:
            self._operator, number = self._number(operator), self._requests
            stream = self.stream if self.pool is None else self.pool
            if self.when_full is not None and self._may_exceed(size_bytes):
                address = self.when_full(size_bytes, stream, operator)
            else:
                address = self.allocator.malloc(size_bytes, stream)
            self.requested_bytes += size_bytes
            if self.sizes is not None:
                self.sizes[int(size_bytes)] = self.sizes.get(int(size_bytes), 0) + size_bytes
            if isinstance(size_bytes, Size) and address:
                self.elsewhere.replace(number, size_bytes)
            return address
        finally:
            self.high_bytes = max(self.high_bytes, self.counters.allocated_bytes)
            self._busy = False
            while self._gone:
                self._drop_now(self._gone.pop(0))

    def _may_exceed(self, size_bytes: int) -> bool:
        """Return whether the GPU may have no room for a request. Asked for each, so without the exact room."""
        most_bytes = self.counters.reserved_bytes + size_bytes + LARGE_SEGMENT_BYTES + self.card.outside_bytes
        return most_bytes > self.card.available_bytes or most_bytes > self.allowed_bytes

    def capture(self, pool: int) -> None:
        """Allocate in a private pool from now on, as a CUDA graph does that is captured."""
        self.pool = pool
        self.allocator.private.add(pool)
        self._number(CAPTURE)

    def keep(self, key: object, size_bytes: int, operator: Any) -> None:
        """Allocate a library's workspace once per key. It is never freed."""
        if key not in self.kept and size_bytes:
            self.kept[key] = self.malloc(size_bytes, operator)

    def note_convolution(self, held: Held) -> None:
        """Record whether a convolution's workspaces were measured, for the notes of the estimate."""
        if held.key:
            measured = all(workspace.measured for workspace in held.workspaces)
            self.convolutions[held.key] = measured and self.convolutions.get(held.key, True)

    @contextmanager
    def borrow(self, sizes_bytes: Iterable[int], operator: Any) -> Iterator[None]:
        """Allocate temporary memory while an operator runs, as its kernels do."""
        addresses, added = [], []
        try:
            for size in sizes_bytes:
                if size:
                    addresses.append(self.malloc(size, operator))
                elif isinstance(size, Size):
                    added.append(self.elsewhere.add(self._requests, size, self.stream, self._number(operator)))
            yield
        finally:
            for number in reversed(added):
                self.elsewhere.remove(self._requests, number)
            for address in reversed(addresses):
                if address:
                    self.allocator.free(address)

    def _number(self, operator: Any) -> int:
        name = operator if isinstance(operator, str) else label_of(operator)
        number = self.operators.get(name)
        if number is None:
            number = self.operators[name] = len(self.operators)
        return number

    def _heard(self, action: Action, address: int, size_bytes: int, stream: int) -> None:
        operator = self._operator if action == Action.ALLOC else -1
        self._requests += action in REQUESTS
        if self.overlap is not None and action == Action.ALLOC:
            self.overlap.allocated(address, size_bytes, self.of_thread.number)
        elif self.overlap is not None and action == Action.FREE_REQUESTED:
            self.overlap.freed(address, size_bytes)
        self.events.append((int(action), address, size_bytes, stream, time.time_ns(), self.of_thread.token, operator))
