"""PyTorch's caching allocator as its documentation describes it, and random calls of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from gpuledger.analyze.posting.replay import OpenState
from gpuledger.model.journal.journal import Action

MIB = 1 << 20


@dataclass
class Block:
    address: int
    size: int
    segment: int
    small: bool
    requested: int = 0
    state: int = 0


@dataclass
class Allocator:
    """PyTorch's caching allocator in its default settings, written from its description and not from our replay."""

    blocks: list[Block] = field(default_factory=list)
    events: list[tuple[int, int, int]] = field(default_factory=list)
    next_segment: int = 1 << 40

    def malloc(self, requested: int) -> Block:
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        fitting = [b for b in self.blocks if b.state == 0 and b.small == small and b.size >= size]
        block = min(fitting, key=lambda b: (b.size, b.address)) if fitting else self._segment(size, small)
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            self.blocks.append(Block(block.address + size, rest, block.segment, small))
            block.size = size
        block.state, block.requested = 1, requested
        self.events.append((Action.ALLOC, block.address, requested))
        return block

    def _segment(self, size: int, small: bool) -> Block:
        total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        block = Block(self.next_segment, total, self.next_segment, small)
        self.next_segment += total  # neighbours touch, and still must not merge
        self.blocks.append(block)
        self.events.append((Action.SEGMENT_ALLOC, block.address, total))
        return block

    def give_back(self, block: Block) -> None:
        self.events.append((Action.FREE_REQUESTED, block.address, block.requested))
        block.state = 2

    def complete(self, block: Block) -> None:
        self.events.append((Action.FREE_COMPLETED, block.address, block.requested))
        block.state = 0
        for other in list(self.blocks):
            if other is block or other.state or other.segment != block.segment:
                continue
            if other.address + other.size == block.address or block.address + block.size == other.address:
                self.blocks.remove(other)
                block.address = min(block.address, other.address)
                block.size += other.size

    def empty_cache(self) -> None:
        for block in list(self.blocks):
            whole = not any(b.segment == block.segment and b is not block for b in self.blocks)
            if block.state == 0 and whole:
                self.blocks.remove(block)
                self.events.append((Action.SEGMENT_FREE, block.address, block.size))

    def opening(self) -> OpenState:
        segments: dict[int, int] = {}
        for block in self.blocks:
            segments[block.segment] = segments.get(block.segment, 0) + block.size
        rows = [(b.address, b.size, b.requested if b.state else 0, b.state) for b in self.blocks]
        return OpenState(
            segments=np.array([(a, n, 0, 0) for a, n in segments.items()], dtype=np.int64).reshape(-1, 4),
            blocks=np.array(rows, dtype=np.int64).reshape(-1, 4),
            block_stream=np.zeros(len(rows), dtype=np.int64),
        )


def drive(allocator: Allocator, seed: int, count: int) -> None:
    """Allocate and free at random, ``count`` times."""
    dice = random.Random(seed)
    for _ in range(count):
        live = [b for b in allocator.blocks if b.state == 1]
        waiting = [b for b in allocator.blocks if b.state == 2]
        what = dice.random()
        if what < 0.5 or not (live or waiting):
            allocator.malloc(dice.choice((1, 511, 512, 513, 4096, 300_000, MIB, MIB + 1, 5 * MIB, 11 * MIB, 33 * MIB)))
        elif what < 0.8 and live:
            block = dice.choice(live)
            allocator.give_back(block)
            if dice.random() < 0.8:
                allocator.complete(block)
        elif waiting:
            allocator.complete(dice.choice(waiting))
        if dice.random() < 0.02:
            allocator.empty_cache()
