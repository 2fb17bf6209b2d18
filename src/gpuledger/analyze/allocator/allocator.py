"""PyTorch's caching allocator for CUDA, simulated without a GPU.

Computes the segments and blocks for a sequence of requests. Follows c10/cuda/CUDACachingAllocator.cpp of torch 2.11:
rounding, small and large pool, best fit by size then address, splitting, merging, expandable segments, blocks in use by
other streams, release of cached segments when the GPU is full, garbage collection. With the recorded requests and frees
of a real GPU, it reproduces the recorded segments.

Private pools, as of CUDA graphs, are streams here: blocks of one stream serve no other. Not simulated:
``cudaMallocAsync``, several threads at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from gpuledger.analyze.allocator.expandable import ExpandableSegments, room_of
from gpuledger.analyze.allocator.memory import ROUND_LARGE_BYTES, CardMemory, Listener, unheard
from gpuledger.analyze.allocator.pools import (
    LARGE_SEGMENT_BYTES,
    MIB,
    SMALL_SEGMENT_BYTES,
    AllocatorLimits,
    Block,
    OutOfMemoryError,
    Pool,
    merge_neighbours,
)
from gpuledger.analyze.posting.replay import MIN_BLOCK_BYTES, SMALL_BYTES, AllocatorSettings
from gpuledger.model.journal.journal import Action

MIN_LARGE_BYTES = 10 * MIB


class CachingAllocator:
    """One GPU's allocator.

    Args:
        settings: Rounding, splitting, expandable segments.
        limits: The GPU's memory and the limits of its use.
        listen: Called with every event, in the allocator's own order.
        place: Returns the address of a new segment of the given size.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        limits: AllocatorLimits | None = None,
        listen: Listener = unheard,
        place: Callable[[int], int] | None = None,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.memory = CardMemory(limits or AllocatorLimits(), listen, place)
        self.counters = self.memory.counters
        self.live: dict[int, Block] = {}
        self.pools = {True: Pool(small=True), False: Pool(small=False)}
        self.private: set[int] = set()
        """Streams that stand for private pools. Their segments are not released while they are in use."""
        self._awaiting: list[Block] = []
        self._expandable = ExpandableSegments(self.memory)

    # -- requests ------------------------------------------------------------------------------------------------

    def malloc(self, requested_bytes: int, stream: int = 0) -> int:
        """Return the address of a new block.

        Raises:
            OutOfMemoryError: the GPU has no room for it.
        """
        if self._awaiting:
            self.finish_streams()
        size = self.settings.round_up(requested_bytes)
        pool = self.pools[size <= SMALL_BYTES]
        block = self._find(pool, size, stream) or self._grow(pool, size, stream, requested_bytes)
        rest = block.size - size
        if rest and self._splits(pool, size, rest):
            block = self._split(block, size)
        block.allocated = True
        block.requested_bytes = requested_bytes
        self.live[block.address] = block
        self._count_alloc(block.size, requested_bytes)
        self.memory.listen(Action.ALLOC, block.address, requested_bytes, stream)
        return block.address

    def free(self, address: int) -> None:
        """Free a block. If other streams use it, the free completes when they have finished."""
        block = self.live.pop(address)
        block.allocated = False
        counters = self.counters
        counters.allocated_bytes -= block.size
        counters.requested_bytes -= block.requested_bytes
        counters.free_count += 1
        self.memory.listen(Action.FREE_REQUESTED, address, block.requested_bytes, block.stream)
        if block.used_by:
            self._awaiting.append(block)
        else:
            self._complete(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Record that another stream uses a block."""
        block = self.live.get(address)
        if block is not None and stream != block.stream:
            block.used_by.add(stream)

    def finish_streams(self) -> None:
        """Complete the frees of blocks that other streams used."""
        waiting, self._awaiting = self._awaiting, []
        for block in waiting:
            block.used_by.clear()
            self._complete(block)

    def empty_cache(self) -> None:
        """Release every segment without a block in use."""
        self.finish_streams()
        for pool in (self.pools[False], self.pools[True]):
            for block in pool.blocks():
                if block.stream in self.private:
                    continue
                if block.expandable:
                    self._expandable.unmap(block)
                elif block.is_whole:
                    self._release(block)

    # -- search -------------------------------------------------------------------------------------------------

    def _find(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Return the best free block, removed from its pool; None if none fits."""
        pool.searches += 1
        order = pool.order.get(stream)
        if not order:
            return None
        # Best fit: the smallest free block that is large enough, the lowest address among equals.
        place = bisect_left(order, (size, 0))
        if place == len(order):
            return None
        block = pool.free[order[place][1]]
        if block.expandable and self.settings.expandable:
            # For best fit, PyTorch takes an expandable block to be as large as it can grow, not as it is now. So a
            # larger block that cannot grow as far may fit better.
            while block.expandable and place + 1 < len(order):
                following = pool.free[order[place + 1][1]]
                if room_of(following) >= room_of(block):
                    break
                block, place = following, place + 1
        return pool.take(stream, place) if self._may_take(size, block.size) else None

    def _may_take(self, size: int, block_bytes: int) -> bool:
        """Return whether ``max_split_size`` allows a block of this size for a request."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return True
        if size < limit:
            return block_bytes < limit
        return block_bytes < size + self.memory.limits.max_non_split_rounding_bytes

    def _splits(self, pool: Pool, size: int, rest: int) -> bool:
        if pool.small or self.settings.expandable:
            return rest >= MIN_BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return rest > SMALL_BYTES and (limit is None or size < limit)

    def _split(self, rest: Block, size: int) -> Block:
        """Return the front of a block. The rest stays free."""
        block = Block(rest.address, size, rest.stream, rest.pool, expandable=rest.expandable)
        block.previous, block.next = rest.previous, rest
        if rest.previous is not None:
            rest.previous.next = block
        rest.previous = block
        rest.address += size
        rest.size -= size
        rest.pool.add(rest)
        return block

    # -- growing ------------------------------------------------------------------------------------------------

    def _grow(self, pool: Pool, size: int, stream: int, requested_bytes: int) -> Block:
        """Return a block in newly reserved memory. If the GPU is full, release cached segments first."""
        self._collect_garbage()
        # The order is PyTorch's: new memory, then oversized cached segments, then the whole cache, then the error.
        block = self._new_block(pool, size, stream)
        if block is None and self._release_available(size, stream):
            block = self._new_block(pool, size, stream)
        if block is None:
            self.counters.retries += 1
            self.empty_cache()
            block = self._find(pool, size, stream) if self.settings.expandable else None
            block = block or self._new_block(pool, size, stream)
        if block is None:
            raise OutOfMemoryError(requested_bytes, self.counters.reserved_bytes)
        return block

    def _new_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self.settings.expandable:
            return self._expandable.expand(pool, size, stream)
        bytes_taken = _segment_bytes(size)
        if not self.memory.has_room(bytes_taken):
            return None
        address = self.memory.place(bytes_taken)
        self.memory.take(Action.SEGMENT_ALLOC, address, bytes_taken, stream)
        return Block(address, bytes_taken, stream, pool)

    # -- release ------------------------------------------------------------------------------------------------

    def _complete(self, block: Block) -> None:
        self.counters.active_bytes -= block.size
        self.memory.listen(Action.FREE_COMPLETED, block.address, block.requested_bytes, block.stream)
        merge_neighbours(block)
        block.pool.add(block)

    def _release(self, block: Block) -> None:
        """Return a whole segment to the driver."""
        block.pool.remove(block)
        self.memory.give_back(Action.SEGMENT_FREE, block.address, block.size, block.stream)

    def _release_available(self, size: int, stream: int) -> bool:
        """Release as few oversized segments as needed for ``size``. Applies only if ``max_split_size`` is set."""
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        pool = self.pools[size <= SMALL_BYTES]
        order = pool.order.get(stream, [])
        place = bisect_left(order, (wanted, 0))
        if place < len(order):
            self._release(pool.free[order[place][1]])
            return True
        released = 0
        for block_bytes, address in reversed(list(order)):
            if block_bytes < limit or released >= wanted:
                break
            released += block_bytes
            self._release(pool.free[address])
        return released >= wanted

    def _collect_garbage(self) -> None:
        """Release old cached segments if the reserved bytes exceed the threshold."""
        allowed, threshold = self.memory.limits.allowed_bytes, self.memory.limits.garbage_collection_threshold
        if self.memory.limits.fraction is None or allowed is None or not threshold:
            return
        target = self.counters.reserved_bytes - int(allowed * threshold)
        pool = self.pools[False]
        freed = True
        while target > 0 and freed:
            candidates = [block for block in pool.blocks() if block.is_whole and not block.expandable]
            if not candidates:
                return
            # Age is counted in searches of the pool since a block was freed, as PyTorch does, not in time.
            mean_age = sum(pool.searches - block.age_base for block in candidates) / len(candidates)
            freed = False
            for block in candidates:
                if pool.searches - block.age_base >= mean_age:
                    target -= block.size
                    freed = True
                    self._release(block)

    # -- counters -----------------------------------------------------------------------------------------------

    def _count_alloc(self, size: int, requested_bytes: int) -> None:
        counters = self.counters
        counters.alloc_count += 1
        counters.allocated_bytes += size
        counters.requested_bytes += requested_bytes
        counters.active_bytes += size
        counters.see_peaks()


def _segment_bytes(size: int) -> int:
    """Return the segment size reserved for a request of ``size`` bytes."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
