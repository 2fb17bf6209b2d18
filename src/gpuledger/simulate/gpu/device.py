"""The virtual device: which storages are on the GPU, and the allocator that holds them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpuledger.model.journal.journal import Action
from gpuledger.simulate.allocator.allocator import CachingAllocator
from gpuledger.simulate.allocator.pools import Counters
from gpuledger.simulate.catalogue import Card
from gpuledger.simulate.convolutions.convolutions import Held

Event = tuple[int, int, int, int, int, str, int]
"""Action, address, bytes, stream, time, token and operator number."""


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return a tensor's storage; that of the tensor inside where ``torch.func`` has wrapped it."""
    try:
        return tensor.untyped_storage()
    except NotImplementedError:
        return _storage_of(torch._C._functorch.get_unwrapped(tensor))


class VirtualDevice:
    """One GPU: storages that a program believes to be on it, by the identity of the storage.

    Args:
        card: Its figures.
        allocator: Holds the storages; its events are kept here, each with the token it happened under.
    """

    def __init__(self, card: Card, allocator: CachingAllocator) -> None:
        self.card = card
        self.allocator = allocator
        self.events: list[Event] = []
        self.token = ""
        self.stream = 0
        self.in_backward = False
        self.in_engine = False
        self.operators: dict[str, int] = {}
        self.kept: dict[object, int] = {}
        self.convolutions: dict[tuple[int, ...], bool] = {}
        """Shapes of convolutions, and whether all that cuDNN holds for each was measured."""
        self.module_now: Callable[[], str] = str
        """Returns the path of the module that is running; "" outside of any."""
        self.at_first_bytes: Callable[[], None] | None = None
        """Called once, before the first bytes are put on the GPU."""
        self._operator = -1
        self._live: dict[int, tuple[weakref.ref[Any], int, int]] = {}
        self._busy = False
        self._gone: list[int] = []
        allocator.memory.listen = self._heard

    @property
    def counters(self) -> Counters:
        """Return the allocator's counters."""
        return self.allocator.counters

    @property
    def handles(self) -> int:
        """Return how many cuBLAS handles the program has."""
        return len({key[2] for key in self.kept if isinstance(key, tuple) and key[0] == "cublas"})

    # -- storages ---------------------------------------------------------------------------------------------------

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the GPU."""
        return tensor.layout is torch.strided and _storage_of(tensor)._cdata in self._live

    def address(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor's storage on the GPU; 0 where it is not there or empty."""
        if tensor.layout is not torch.strided:
            return 0
        known = self._live.get(_storage_of(tensor)._cdata)
        return known[1] if known else 0

    def adopt(self, tensor: torch.Tensor, operator: Any) -> None:
        """Put a storage on the GPU, unless it is there already with as many bytes."""
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

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """Note that another stream uses a tensor."""
        address = self.address(tensor)
        if address:
            self.allocator.record_stream(address, stream)

    def _drop(self, key: int) -> None:
        """A storage is gone. The garbage collector may call this at any moment, so it may have to wait."""
        if self._busy:
            self._gone.append(key)
            return
        known = self._live.pop(key, None)
        if known is not None and known[1]:
            self._operator = -1
            self.allocator.free(known[1])

    # -- bytes ------------------------------------------------------------------------------------------------------

    def malloc(self, size_bytes: int, operator: Any) -> int:
        """Return the address of new bytes on the current stream.

        Raises:
            OutOfMemoryError: the GPU has no room for them.
        """
        at_first_bytes, self.at_first_bytes = self.at_first_bytes, None
        if at_first_bytes is not None:
            at_first_bytes()
        self._busy = True
        try:
            self._operator = self._number(operator)
            return self.allocator.malloc(size_bytes, self.stream)
        finally:
            self._busy = False
            while self._gone:
                self._drop(self._gone.pop(0))

    def keep(self, key: object, size_bytes: int, operator: Any) -> None:
        """Take bytes once and for good: a library's workspace."""
        if key not in self.kept and size_bytes:
            self.kept[key] = self.malloc(size_bytes, operator)

    def met(self, held: Held) -> None:
        """Note a convolution, for what is said of its workspaces."""
        if held.key:
            measured = all(workspace.measured for workspace in held.workspaces)
            self.convolutions[held.key] = measured and self.convolutions.get(held.key, True)

    @contextmanager
    def borrow(self, sizes_bytes: Iterable[int], operator: Any) -> Iterator[None]:
        """Hold bytes for as long as an operator works, as its kernels do."""
        addresses = [self.malloc(size, operator) for size in sizes_bytes if size]
        try:
            yield
        finally:
            for address in reversed(addresses):
                self.allocator.free(address)

    def _number(self, operator: Any) -> int:
        name = str(operator)
        number = self.operators.get(name)
        if number is None:
            number = self.operators[name] = len(self.operators)
        return number

    def _heard(self, action: Action, address: int, size_bytes: int, stream: int) -> None:
        operator = self._operator if action == Action.ALLOC else -1
        self.events.append((int(action), address, size_bytes, stream, time.time_ns(), self.token, operator))
