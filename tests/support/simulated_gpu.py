"""A simulated H200 in this process, and what it says of values that it does not know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

SAID: list[str] = []
"""The notes of the last simulated GPU."""


@contextmanager
def simulated_h200() -> Iterator[SimulatedDevice]:
    """Simulate an H200 in place of this machine's GPU. Its notes go to :data:`SAID`."""
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    SAID.clear()
    with in_place(device, SAID.append):
        yield device
