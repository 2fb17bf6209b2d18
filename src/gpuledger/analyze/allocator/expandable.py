"""Expandable segments of the simulated allocator: address ranges to which memory is mapped as needed.

Follows c10/cuda/CUDACachingAllocator.cpp of torch 2.11.
"""

from __future__ import annotations

from gpuledger.analyze.allocator.memory import CardMemory
from gpuledger.analyze.allocator.pools import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES, Block, Pool, merge_neighbours
from gpuledger.model.journal.journal import Action

_VIRTUAL_SPACE_BYTES = 1 << 44
"""Address range of one segment. The real allocator reserves 1 1/8 of the GPU's memory."""


class ExpandableSegments:
    """The expandable segments of one GPU."""

    def __init__(self, memory: CardMemory) -> None:
        self._memory = memory
        self._starts: list[int] = []

    def expand(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Return a block of at least ``size`` at the end of the mapped range; None if the GPU is full."""
        block = self._space(pool, size, stream)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        # Mapping merges a piece with the free block before it, so ``block`` is now all of the run.
        pool.remove(block)
        return block

    def _space(self, pool: Pool, size: int, stream: int) -> Block:
        """Return the first block of a run of free and unmapped blocks that has room for ``size``."""
        for unmapped in pool.unmapped.get(stream, []):
            start = unmapped.previous if unmapped.previous is not None and unmapped.previous.is_idle else unmapped
            room, block = 0, start
            walker: Block | None = block
            while room < size and walker is not None and walker.is_idle:
                room += walker.size
                walker = walker.next
            if room >= size:
                return start
        address = self._memory.place(_VIRTUAL_SPACE_BYTES)
        block = Block(address, _VIRTUAL_SPACE_BYTES, stream, pool, expandable=True)
        block.mapped = False
        self._starts.append(address)
        pool.add_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map memory to the first ``size`` bytes of ``block``, in whole pages. Return False if the GPU is full."""
        page = _page_bytes(block)
        mapped = -(-size // page) * page
        if not self._memory.has_room(mapped):
            return False
        block.pool.remove_unmapped(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, block.stream, block.pool, expandable=True)
            rest.mapped = False
            block.link_after(rest)
            block.pool.add_unmapped(rest)
            block.size = mapped
        address = block.address
        merge_neighbours(block)
        block.pool.add(block)
        self._memory.take(Action.SEGMENT_MAP, address, mapped, block.stream)
        return True

    def unmap(self, block: Block) -> None:
        """Unmap the whole pages of a free block."""
        page = _page_bytes(block)
        start = next(s for s in reversed(self._starts) if s <= block.address)
        # Only whole pages can be unmapped; what is left on either side stays mapped, as free blocks.
        first = start + -(-(block.address - start) // page) * page
        last = start + (block.address + block.size - start) // page * page
        if first >= last:
            return
        block.pool.remove(block)
        before, after = first - block.address, block.address + block.size - last
        if after:
            rest = Block(last, after, block.stream, block.pool, expandable=True)
            block.link_after(rest)
            block.pool.add(rest)
        if before:
            rest = Block(block.address, before, block.stream, block.pool, expandable=True)
            if block.previous is not None:
                block.previous.link_after(rest)
            else:
                rest.next = block
                block.previous = rest
            block.pool.add(rest)
        block.address, block.size, block.mapped = first, last - first, False
        merge_neighbours(block)
        block.pool.add_unmapped(block)
        self._memory.give_back(Action.SEGMENT_UNMAP, first, last - first, block.stream)


def _page_bytes(block: Block) -> int:
    return SMALL_SEGMENT_BYTES if block.pool.small else LARGE_SEGMENT_BYTES


def room_of(block: Block) -> int:
    """Return the size of a free block including the unmapped range behind it that can be mapped."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)
