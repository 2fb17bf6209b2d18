"""GPU memory of the simulated allocator: reserved bytes, limits and a listener for events."""

from __future__ import annotations

from collections.abc import Callable

from gpuledger.analyze.allocator.pools import MIB, AllocatorLimits, Counters
from gpuledger.model.journal.journal import Action

ROUND_LARGE_BYTES = 2 * MIB
_FIRST_ADDRESS = 0x7F00_0000_0000

Listener = Callable[[Action, int, int, int], None]
"""Called with action, address, bytes (requested for blocks, whole for segments) and stream."""


def unheard(_action: Action, _address: int, _bytes: int, _stream: int) -> None:
    """Ignore an event."""


class CardMemory:
    """The driver's side of an allocator.

    Args:
        limits: The GPU's memory and the limits of its use.
        listen: Called with every event, in the allocator's own order.
        place: Returns the address of a new segment of the given size.
    """

    def __init__(self, limits: AllocatorLimits, listen: Listener, place: Callable[[int], int] | None) -> None:
        self.limits = limits
        self.listen = listen
        self.place = place or self._next_place
        self.counters = Counters()
        self._next_address = _FIRST_ADDRESS

    def has_room(self, more_bytes: int) -> bool:
        """Return whether ``more_bytes`` can be reserved."""
        allowed = self.limits.allowed_bytes
        return allowed is None or self.counters.reserved_bytes + more_bytes <= allowed

    def take(self, action: Action, address: int, size: int, stream: int) -> None:
        """Reserve the bytes of a segment, or of a mapped part of one."""
        counters = self.counters
        counters.reserved_bytes += size
        counters.see_peaks()
        self.listen(action, address, size, stream)

    def give_back(self, action: Action, address: int, size: int, stream: int) -> None:
        """Release reserved bytes."""
        self.counters.reserved_bytes -= size
        self.listen(action, address, size, stream)

    def _next_place(self, size: int) -> int:
        address = self._next_address
        self._next_address += -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        return address
