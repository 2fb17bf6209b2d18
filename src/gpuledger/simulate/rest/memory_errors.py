"""Out-of-memory errors of the simulated GPU, for a program that handles them.

A program without a handler is simulated as on a GPU with enough memory, so that its estimate says how much it needs.
One with a handler goes on differently after an error, for example with a smaller batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from gpuledger.analyze.allocator.pools import AllocatorLimits, OutOfMemoryError
from gpuledger.simulate.convolutions.convolutions import CUDNN
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.error_handlers import handles_memory_error
from gpuledger.simulate.rest.own_code import line_now
from gpuledger.simulate.traits import listed_traits
from gpuledger.units import format_bytes

MOST_ERRORS = 64
"""Errors after which no more are raised: a program may try the same again forever."""
_NO_LIMIT = AllocatorLimits()


class HandledMemoryErrors:
    """Raises out-of-memory errors where the program handles them.

    Args:
        device: The GPU.
        say: Gets a sentence with the line of the first error.
    """

    def __init__(self, device: SimulatedDevice, say: Callable[[str], None]) -> None:
        self.count = 0
        self.place = ""
        """The first line that met one, as FILE:LINE."""
        self._device = device
        self._say = say
        self._is_over = False
        """Whether the program is on a GPU with enough memory from now on."""

    def install(self, _patches: Patches) -> None:
        """Decide about requests for which the GPU may have no room."""
        self._device.when_full = self._request

    def _request(self, size_bytes: int, stream: int, operator: Any) -> int:
        """Return the address of a block; 0 for a workspace of cuDNN without which torch chooses another algorithm.

        Raises:
            torch.OutOfMemoryError: the GPU has no room for it, and the program handles that.
        """
        allocator = self._device.allocator
        if self._is_over or not (self.count or handles_memory_error(sys._getframe(1))):
            return self._take_anyway(size_bytes, stream)
        allocator.memory.limits = AllocatorLimits(capacity_bytes=self._device.room_bytes)
        try:
            return allocator.malloc(size_bytes, stream)
        except OutOfMemoryError:
            if operator == CUDNN:
                return 0
            if self.count == MOST_ERRORS or not handles_memory_error(sys._getframe(1)):
                allocator.memory.limits = _NO_LIMIT
                return self._take_anyway(size_bytes, stream)
        finally:
            allocator.memory.limits = _NO_LIMIT
        raise self._error(size_bytes)

    def _take_anyway(self, size_bytes: int, stream: int) -> int:
        """Return the address of a block, whatever room there is. The program would have ended without room."""
        address = self._device.allocator.malloc(size_bytes, stream)
        self._is_over |= self._device.counters.allocated_bytes > self._device.room_bytes
        return address

    def _error(self, size_bytes: int) -> torch.OutOfMemoryError:
        device, counters = self._device, self._device.counters
        device.memory_errors = self.count = self.count + 1
        card = device.card
        used_bytes = counters.reserved_bytes + card.outside_bytes
        if self.count == 1:
            self.place = line_now()
            device.elsewhere.approximate.update(set(listed_traits()) - {device.sizing.own})
            self._say(
                f"{self.place}: out of memory on the simulated GPU, for {format_bytes(size_bytes)} beside "
                f"{format_bytes(counters.reserved_bytes)} reserved. The script handles this error and is simulated "
                "further. The estimate is of what it ran."
            )
        allowed = f"{_size(device.allowed_bytes)} allowed; " if device.limit_frac < 1 else ""
        free_bytes = max(card.available_bytes - used_bytes, 0)
        cached_bytes = counters.reserved_bytes - counters.allocated_bytes
        sentences = (
            f"CUDA out of memory. Tried to allocate {_size(size_bytes)}.",
            f"GPU {device.place.index} has a total capacity of {_size(card.available_bytes)}",
            f"of which {_size(free_bytes)} is free.",
            f"{allowed}Including non-PyTorch memory, this process has {_size(used_bytes)} memory in use.",
            f"Of the allocated memory {_size(counters.allocated_bytes)} is allocated by PyTorch,",
            f"and {_size(cached_bytes)} is reserved by PyTorch but unallocated.",
        )
        return torch.OutOfMemoryError(" ".join(sentences))


def _size(size_bytes: int) -> str:
    """Return a size as in PyTorch's errors."""
    shift, unit = next((pair for pair in ((30, "GiB"), (20, "MiB")) if size_bytes >> pair[0]), (10, "KiB"))
    return f"{size_bytes / (1 << shift):.2f} {unit}"
