"""What the simulated allocator keeps: blocks, pools of free ones, limits and counters."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 1 << 20
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB


class OutOfMemoryError(Exception):
    """The GPU has no room for a request, not even after every cached segment was given back."""

    def __init__(self, requested_bytes: int, reserved_bytes: int, allocated_bytes: int) -> None:
        super().__init__(f"{requested_bytes:,} bytes requested, {reserved_bytes:,} bytes reserved")
        self.requested_bytes = requested_bytes
        self.reserved_bytes = reserved_bytes
        self.allocated_bytes = allocated_bytes


@dataclass(frozen=True)
class Limits:
    """What the GPU and the settings allow.

    ``capacity_bytes`` None means more than any program needs. ``fraction`` is what
    ``set_per_process_memory_fraction`` allows; without it the garbage collection setting does nothing.
    """

    capacity_bytes: int | None = None
    fraction: float | None = None
    garbage_collection_threshold: float = 0.0
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES

    @property
    def allowed_bytes(self) -> int | None:
        """Return the most that may be reserved; None without a limit."""
        if self.capacity_bytes is None or self.fraction is None:
            return self.capacity_bytes
        return int(self.capacity_bytes * self.fraction)


class Block:
    """A piece of a segment; ``previous`` and ``next`` are its neighbours in it."""

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
    def is_idle(self) -> bool:
        """Return whether nobody holds it and no stream still works on it."""
        return not self.allocated and not self.used_by

    @property
    def is_whole(self) -> bool:
        """Return whether it is a segment of its own."""
        return self.previous is None and self.next is None

    def link_after(self, following: Block) -> None:
        """Put a block between this one and its next."""
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
        """Put a free block in."""
        insort(self.order.setdefault(block.stream, []), (block.size, block.address))
        self.free[block.address] = block
        block.age_base = self.searches

    def remove(self, block: Block) -> None:
        """Take a free block out."""
        order = self.order[block.stream]
        del order[bisect_left(order, (block.size, block.address))]
        del self.free[block.address]

    def add_unmapped(self, block: Block) -> None:
        """Put address space without memory in."""
        insort(self.unmapped.setdefault(block.stream, []), block, key=_address)

    def remove_unmapped(self, block: Block) -> None:
        """Take address space without memory out."""
        self.unmapped[block.stream].remove(block)

    def blocks(self) -> list[Block]:
        """Return the free blocks by size, then address."""
        return [self.free[address] for order in self.order.values() for _, address in order]


def merge_neighbours(block: Block) -> None:
    """Take idle neighbours into ``block``, which is in no list itself."""
    for other in (block.previous, block.next):
        if other is None or not other.is_idle or other.mapped != block.mapped:
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
    """Bytes now and at most. ``requested`` is what was asked for, ``allocated`` what was given."""

    allocated_bytes: int = 0
    requested_bytes: int = 0
    active_bytes: int = 0
    reserved_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    alloc_count: int = 0
    free_count: int = 0
    retries: int = 0


def _address(block: Block) -> int:
    return block.address
