"""Replays of a recording as if the program were changed: half the batch size, activation checkpointing.

A replay changes sizes and lifetimes of blocks. Its peak is the peak that the changed program would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.live import I64, read_numbers, running_sum
from gpuledger.analyze.overview.peak_facts import Mask, PeakFacts
from gpuledger.analyze.posting.replay import NEVER

if TYPE_CHECKING:
    from gpuledger.analyze.memory.families import Family

GROWS_WITH_BATCH = ("activation", "activation_gradient", "temporary", "input")
_TINY_FRAC = 1 / 64
_RECOMPUTED = ("activation", "temporary")


@dataclass(frozen=True)
class Replay:
    """Blocks with their allocated bytes and lifetimes, as in :class:`gpuledger.analyze.memory.live.Lives`."""

    bytes: I64
    start: I64
    end: I64

    @property
    def peak_bytes(self) -> int:
        """Return the peak of allocated bytes."""
        return int(running_sum(self.bytes, self.start, self.end).bytes.max())

    def plus(self, sizes: Sequence[int] | I64, starts: Sequence[int] | I64, ends: Sequence[int] | I64) -> Replay:
        """Return the replay with more blocks."""
        both = zip((self.bytes, self.start, self.end), (sizes, starts, ends), strict=True)
        return Replay(*(np.concatenate((one, np.asarray(more, dtype=np.int64))) for one, more in both))


def as_recorded(facts: PeakFacts) -> Replay:
    """Return the blocks as they were recorded."""
    lives = facts.lives
    return Replay(lives.allocated_bytes, lives.alloc_index, lives.free_requested_index)


def with_half_batch(facts: PeakFacts) -> Replay:
    """Return the blocks with half the batch size. In training, gradients are accumulated over two batches.

    Temporaries of the optimizer do not depend on the batch. In the second batch, the gradients of the first one are
    allocated from the start of its forward, and each new gradient is added to the one before it.
    """
    recorded = as_recorded(facts)
    grows = facts.of(*GROWS_WITH_BATCH) & ~facts.born_in("optimizer")
    halved = Replay(np.where(grows, recorded.bytes // 2, recorded.bytes), recorded.start, recorded.end)
    if not facts.is_trained:
        return halved
    steps = read_numbers(facts.rank, "blocks", "step", facts.device_idx)
    forward = facts.born_in("forward") & (recorded.start >= 0)
    gradients = np.flatnonzero(facts.of("gradient") & facts.born_in("backward"))
    begins = {step: int(recorded.start[forward & (steps == step)].min()) for step in np.unique(steps[forward]).tolist()}
    added = [place for place in gradients.tolist() if begins.get(int(steps[place]), NEVER) < recorded.start[place]]
    starts = [begins[int(steps[place])] for place in added]
    return halved.plus(recorded.bytes[added], starts, recorded.start[added] + 1)


def with_checkpointing(facts: PeakFacts, family: Family) -> Replay:
    """Return the blocks as if each module of a family were checkpointed.

    What a module's backward reads is freed at the end of its forward, and allocated again just before its backward,
    together with the temporaries of that forward. The module's output is kept, because the next module reads it.
    """
    replay = as_recorded(facts)
    steps = read_numbers(facts.rank, "blocks", "step", facts.device_idx)
    end = replay.end.copy()
    more: list[tuple[int, int, int]] = []
    kinds = facts.of(*_RECOMPUTED)
    for subtree in family.subtrees:
        own = np.isin(facts.module_id, subtree)
        forward, backward = (own & facts.born_in(phase) & (replay.start >= 0) for phase in ("forward", "backward"))
        for step in np.unique(steps[forward & kinds]).tolist():
            inside, after = forward & (steps == step), backward & (steps == step)
            if not after.any():
                continue
            left, again = int(replay.start[inside].max()), int(replay.start[after].min())
            inner, output = _inner(replay, inside & kinds, left, again)
            if not inner.any():
                continue
            end[inner] = left + 1
            more += [(int(replay.bytes[at]), again - 1, int(replay.end[at])) for at in np.flatnonzero(inner)]
            kept_bytes = int(replay.bytes[output]) if replay.end[output] > again else 0
            extra = _highest(replay, inside) - int(replay.bytes[inner].sum()) - kept_bytes
            more.append((max(extra, 0), again - 1, again))
    sizes, starts, ends = zip(*more, strict=True) if more else ((), (), ())
    return Replay(replay.bytes, replay.start, end).plus(sizes, starts, ends)


def _inner(replay: Replay, inside: Mask, left: int, again: int) -> tuple[Mask, int]:
    """Return which blocks only the module's own backward reads, and the place of the module's output.

    The output is the last block of the forward that is not tiny, such as the statistics of a normalization are.
    """
    large = inside & (replay.bytes >= _TINY_FRAC * replay.bytes[inside].max())
    output = int(np.flatnonzero(large)[np.argmax(replay.start[large])])
    inner = inside & (replay.end > left) & (replay.end > again)
    inner[output] = False
    return inner, output


def _highest(replay: Replay, blocks: Mask) -> int:
    """Return the peak of these blocks during their module's forward."""
    last = int(replay.start[blocks].max())
    curve = running_sum(replay.bytes[blocks], replay.start[blocks], replay.end[blocks])
    return int(curve.bytes[curve.index <= last].max())
