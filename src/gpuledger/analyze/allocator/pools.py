"""Data structures of the simulated allocator: blocks, pools of free blocks, limits and counters."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 1 << 20
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB


class OutOfMemoryError(Exception):
    """The GPU is out of memory even after all cached segments were released."""

    def __init__(self, requested_bytes: int, reserved_bytes: int) -> None:
        super().__init__(f"{requested_bytes:,} bytes requested, {reserved_bytes:,} bytes reserved")


@dataclass(frozen=True)
class AllocatorLimits:
    """The limits of GPU and settings.

    ``capacity_bytes`` None means unlimited. ``fraction`` is the value of ``set_per_process_memory_fraction``. Without
    it, the garbage collection setting has no effect.
    """

    capacity_bytes: int | None = None
    fraction: float | None = None
    garbage_collection_threshold: float = 0.0
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES

    @property
    def allowed_bytes(self) -> int | None:
        """Return the maximum of reserved bytes; None without a limit."""
        if self.capacity_bytes is None or self.fraction is None:
            return self.capacity_bytes
        return int(self.capacity_bytes * self.fraction)


class Block:
    """A part of a segment. ``previous`` and ``next`` are its neighbours."""

    __slots__ = (
        "address",
        "age_base",
        "allocated",
        "expandable",
        "mapped",
        "next",
        "pool",
        "previous",
        "requested_bytes",
        "size",
        "stream",
        "used_by",
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool, *, expandable: bool = False) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.expandable = expandable
        self.mapped = True
        self.allocated = False
        self.requested_bytes = 0
        self.previous: Block | None = None
        self.next: Block | None = None
        self.used_by: set[int] = set()
        self.age_base = 0

    @property
    def is_whole(self) -> bool:
        """Return whether it is a whole segment."""
        return self.previous is None and self.next is None

    @property
    def is_idle(self) -> bool:
        """Return whether it is free and no stream uses it any more."""
        return not self.allocated and not self.used_by

    def link_after(self, following: Block) -> None:
        """Insert ``following`` between this block and its next neighbour."""
        following.previous, following.next = self, self.next
        if self.next is not None:
            self.next.previous = following
        self.next = following


@dataclass
class Pool:
    """Free blocks of one kind, by stream: ``(size, address)`` sorted, and the blocks by address."""

    small: bool
    order: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    free: dict[int, Block] = field(default_factory=dict)
    unmapped: dict[int, list[Block]] = field(default_factory=dict)
    searches: int = 0

    def add(self, block: Block) -> None:
        """Add a free block."""
        insort(self.order.setdefault(block.stream, []), (block.size, block.address))
        self.free[block.address] = block
        block.age_base = self.searches

    def remove(self, block: Block) -> None:
        """Remove a free block."""
        order = self.order[block.stream]
        del order[bisect_left(order, (block.size, block.address))]
        del self.free[block.address]

    def take(self, stream: int, place: int) -> Block:
        """Return a free block of a stream, removed from the pool. ``place`` is its position in the order."""
        return self.free.pop(self.order[stream].pop(place)[1])

    def add_unmapped(self, block: Block) -> None:
        """Add an unmapped range."""
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address)

    def remove_unmapped(self, block: Block) -> None:
        """Remove an unmapped range."""
        self.unmapped[block.stream].remove(block)

    def blocks(self) -> list[Block]:
        """Return the free blocks by size, then address."""
        return [self.free[address] for order in self.order.values() for _, address in order]


def merge_neighbours(block: Block) -> None:
    """Merge free neighbours into ``block``, which is not in a pool itself."""
    for other in (block.previous, block.next):
        if other is None or other.allocated or other.used_by or other.mapped != block.mapped:
            continue
        if other.mapped:
            other.pool.remove(other)
        else:
            other.pool.remove_unmapped(other)
        if other is block.previous:
            block.address = other.address
            block.previous = other.previous
            if block.previous is not None:
                block.previous.next = block
        else:
            block.next = other.next
            if block.next is not None:
                block.next.previous = block
        block.size += other.size


@dataclass
class Counters:
    """Current and peak bytes. ``requested`` is the requested size, ``allocated`` the size after rounding.

    A ``recent`` peak is that since :meth:`reset_peaks`, as the program can ask for it.
    """

    allocated_bytes: int = 0
    requested_bytes: int = 0
    active_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    alloc_count: int = 0
    free_count: int = 0
    retries: int = 0
    recent_peak_allocated_bytes: int = 0
    recent_peak_reserved_bytes: int = 0

    def see_peaks(self) -> None:
        """Raise the peaks to the current bytes, if these are higher."""
        allocated_bytes, reserved_bytes = self.allocated_bytes, self.reserved_bytes
        # Without calls of max(), because each request comes here.
        if allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated_bytes
        if allocated_bytes > self.recent_peak_allocated_bytes:
            self.recent_peak_allocated_bytes = allocated_bytes
        if reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = reserved_bytes
        if reserved_bytes > self.recent_peak_reserved_bytes:
            self.recent_peak_reserved_bytes = reserved_bytes

    def reset_peaks(self) -> None:
        """Set the recent peaks to the current bytes."""
        self.recent_peak_allocated_bytes = self.allocated_bytes
        self.recent_peak_reserved_bytes = self.reserved_bytes


def _address(block: Block) -> int:
    return block.address
