"""Live bytes of tensors of a program that runs on the CPU, in blocks of the GPU's allocator."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BLOCK_BYTES = 512
"""The caching allocator rounds each request up to a multiple of this."""


class LiveTensors(TorchDispatchMode):
    """Counts the storages that operators returned and that are alive, and the highest sum after an operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now_bytes = self.peak_bytes = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu" and leaf.layout is torch.strided:
                self.add(leaf)
        return made

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        size_bytes = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        if key in self._known or not size_bytes:
            return
        self._known.add(key)
        self.now_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)
        weakref.finalize(storage, self._drop, key, size_bytes)

    def _drop(self, key: int, size_bytes: int) -> None:
        self._known.discard(key)
        self.now_bytes -= size_bytes


@contextmanager
def live_tensors() -> Iterator[LiveTensors]:
    """Count the tensors that the body makes."""
    with LiveTensors() as counted:
        yield counted
