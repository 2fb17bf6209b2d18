"""Replays of a recording as if the program were changed: half the batch size, activation checkpointing, autocast.

A replay changes sizes and lifetimes of blocks. Its peak is the peak that the changed program would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.memory.lifetimes import I64, distinct_numbers, read_numbers, running_sum
from gpuledger.analyze.overview.peak_facts import Mask, PeakFacts
from gpuledger.analyze.posting.replay import NEVER

if TYPE_CHECKING:
    from gpuledger.analyze.memory.families import ModuleFamily

_GROWS_WITH_BATCH = ("activation", "activation_gradient", "temporary", "input", "cache")
_OF_WEIGHTS = ("weight", "buffer", "gradient")
_COPY_FACTORS = (0.25, 0.5, 1, 2, 4)
_OF_A_STEP = ("activation", "activation_gradient", "temporary")
_PRODUCTS = (
    "Linear",
    "Conv",
    "Bilinear",
    "MultiheadAttention",
    "NonDynamicallyQuantizableLinear",
    "LSTM",
    "GRU",
    "RNN",
)
"""Beginnings of classes of modules whose weights autocast copies to 16 bits."""
_WITH_POW = ("NewGELUActivation",)
_WIDE = ("Embedding", "Softmax", "LogSoftmax", *_WITH_POW)
"""Beginnings of classes of modules that compute in 32 bits under autocast: they look up weights, or use ``pow``."""

_TINY_FRAC = 1 / 64
_RECOMPUTED = ("activation", "temporary")


@dataclass(frozen=True)
class ReplayedBlocks:
    """Blocks with their allocated bytes and lifetimes, as in :class:`gpuledger.analyze.memory.lifetimes.Lives`."""

    bytes: I64
    start: I64
    end: I64

    @property
    def peak_bytes(self) -> int:
        """Return the peak of allocated bytes."""
        return int(running_sum(self.bytes, self.start, self.end).bytes.max())

    def plus(
        self, sizes: Sequence[int] | I64, starts: Sequence[int] | I64, ends: Sequence[int] | I64
    ) -> ReplayedBlocks:
        """Return the replay with more blocks."""
        both = zip((self.bytes, self.start, self.end), (sizes, starts, ends), strict=True)
        return ReplayedBlocks(*(np.concatenate((one, np.asarray(more, dtype=np.int64))) for one, more in both))


def as_recorded(facts: PeakFacts) -> ReplayedBlocks:
    """Return the blocks as they were recorded."""
    lives = facts.lives
    return ReplayedBlocks(lives.allocated_bytes, lives.alloc_index, lives.free_requested_index)


def grows_with_batch(facts: PeakFacts) -> Mask:
    """Return which blocks depend on the batch size. Temporaries of the optimizer and of the setup do not.

    An example of the latter are copies of weights that are quantized. Between phases, a temporary outside modules that
    has the size of a weight counts as such a copy, also in another precision, or of two models. Data of the setup do
    not depend on the batch size either if a batch is a part of them.
    """
    temporary = facts.of("temporary")
    outside = temporary & facts.born_in("between") & (facts.module_id < 0)
    made_of_weights = facts.born_in("optimizer") | (temporary & facts.born_in("setup"))
    made_of_weights[_of_weight_size(facts, np.flatnonzero(outside))] = True
    inputs = facts.rank.manifest.inputs
    data = facts.of("input") & facts.born_in("setup") & bool(inputs and inputs.is_part)
    return facts.of(*_GROWS_WITH_BATCH) & ~(made_of_weights | data)


def _of_weight_size(facts: PeakFacts, places: I64) -> I64:
    """Return which of these places have a block that has the size of a weight in this precision or another one."""
    if not places.size:
        return places
    sizes = facts.lives.allocated_bytes
    of_weights = distinct_numbers(sizes[facts.of(*_OF_WEIGHTS)])
    of_copies = np.sort(np.concatenate([of_weights * factor for factor in _COPY_FACTORS]))
    first, after = (np.searchsorted(of_copies, sizes[places], side) for side in ("left", "right"))
    return places[after > first]


def with_half_batch(facts: PeakFacts) -> ReplayedBlocks:
    """Return the blocks with half the batch size. In training, gradients are accumulated over two batches.

    In the second batch, the gradients of the first one are allocated from the start of its forward, and each new
    gradient is added to the one before it.
    """
    recorded = as_recorded(facts)
    halved = ReplayedBlocks(
        np.where(grows_with_batch(facts), recorded.bytes // 2, recorded.bytes), recorded.start, recorded.end
    )
    if not facts.is_trained:
        return halved
    steps = read_numbers(facts.rank, "blocks", "step", facts.device_idx)
    forward = facts.born_in("forward") & (recorded.start >= 0)
    gradients = np.flatnonzero(facts.of("gradient") & facts.born_in("backward"))
    begins = {
        step: int(recorded.start[forward & (steps == step)].min()) for step in distinct_numbers(steps[forward]).tolist()
    }
    added = [place for place in gradients.tolist() if begins.get(int(steps[place]), NEVER) < recorded.start[place]]
    starts = [begins[int(steps[place])] for place in added]
    return halved.plus(recorded.bytes[added], starts, recorded.start[added] + 1)


def with_checkpointing(facts: PeakFacts, family: ModuleFamily) -> ReplayedBlocks:
    """Return the blocks as if each module of a family were checkpointed.

    What a module's backward reads is freed at the end of its forward, and allocated again just before its backward,
    together with the temporaries of that forward. The module's output is kept, because the next module reads it.
    """
    replay = as_recorded(facts)
    end = replay.end.copy()
    more: list[tuple[int, int, int]] = []
    kinds = facts.of(*_RECOMPUTED)
    for subtree in family.subtrees:
        own = np.isin(facts.module_id, subtree)
        forward, backward = (own & facts.born_in(phase) & (replay.start >= 0) for phase in ("forward", "backward"))
        for inside, after in _visits(replay, forward, backward):
            if not (after.any() and (inside & kinds).any()):
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
    return ReplayedBlocks(replay.bytes, replay.start, end).plus(sizes, starts, ends)


def _visits(replay: ReplayedBlocks, forward: Mask, backward: Mask) -> Iterator[tuple[Mask, Mask]]:
    """Yield the blocks of each forward of a module, and those of the backward that follows."""
    places = np.flatnonzero(forward | backward)
    places = places[np.argsort(replay.start[places], kind="stable")]
    turns = np.concatenate(([False], forward[places][1:] & backward[places][:-1]))[: places.size]
    visit = np.full(forward.size, -1)
    visit[places] = np.cumsum(turns)
    for number in range(int(visit.max(initial=-1)) + 1):
        yield forward & (visit == number), backward & (visit == number)


def with_autocast(facts: PeakFacts) -> ReplayedBlocks:
    """Return the blocks of a training as if its forward ran under autocast with a 16-bit type.

    What modules compute takes half the bytes. Weights, their gradients and all tensors outside modules stay as they
    are, and so do outputs of embeddings, what the outermost module computes itself, and sums that a layer normalization
    reads: these are in 32 bits. Copies of weights in 16 bits are allocated until their module's backward. The output of
    an activation that uses ``pow`` takes half: the product that follows keeps a 16-bit copy of it.
    """
    replay = as_recorded(facts)
    rows = facts.rank.table("modules", ("module_id", "parent_id", "class_name")).to_pylist()
    embeddings = [row["module_id"] for row in rows if row["class_name"] == "Embedding"]
    halved = facts.of(*_OF_A_STEP) & ~facts.born_in("optimizer") & (facts.module_id >= 0)
    if facts.device_idx >= 0 or embeddings:  # on the CPU, a normalization takes 16 bits if its input has them
        copied = [row["module_id"] for row in rows if row["class_name"].startswith(_WITH_POW)]
        halved &= ~_in_32_bits(facts, rows) | _outputs(facts, replay, copied)
    low = ReplayedBlocks(np.where(halved, replay.bytes // 2, replay.bytes), replay.start, replay.end)
    weights = facts.of("weight") & facts.outlasts_setup
    tied_bytes = int(replay.bytes[weights & np.isin(facts.module_id, embeddings)].max(initial=0))
    copies: list[tuple[int, int, int]] = []
    for row in rows:
        if row["class_name"].startswith(_PRODUCTS):
            own = facts.module_id == row["module_id"]
            size = int(replay.bytes[weights & own].sum()) or tied_bytes  # a head can share the weight of an embedding
            copies += [(size // 2, *used) for used in _uses(facts, replay, own)]
    sizes, starts, ends = zip(*copies, strict=True) if copies else ((), (), ())
    return low.plus(sizes, starts, ends)


def _in_32_bits(facts: PeakFacts, rows: list[dict[str, Any]]) -> Mask:
    """Return which blocks of modules stay in 32 bits under autocast."""
    norms = [row for row in rows if row["class_name"].endswith("Norm")]  # not BatchNorm2d, which takes 16 bits
    wide = [
        row["module_id"]
        for row in rows
        if row["parent_id"] is None or row["class_name"].startswith(_WIDE) or row["class_name"].endswith("Loss")
    ]
    requested_bytes = facts.lives.requested_bytes
    outputs = requested_bytes[np.isin(facts.module_id, [row["module_id"] for row in norms])]
    sums = np.isin(facts.module_id, [row["parent_id"] for row in norms if row["parent_id"] is not None])
    found: Mask = np.isin(facts.module_id, wide) | (sums & np.isin(requested_bytes, distinct_numbers(outputs)))
    return found


def _outputs(facts: PeakFacts, replay: ReplayedBlocks, module_ids: list[int]) -> Mask:
    """Return the output of each forward of some modules."""
    found: Mask = np.zeros(replay.bytes.size, dtype=bool)
    for module_id in module_ids:
        own = facts.module_id == module_id
        forward, backward = (own & facts.born_in(phase) & (replay.start >= 0) for phase in ("forward", "backward"))
        for inside, _ in _visits(replay, forward, backward):
            if inside.any():
                found[_output(replay, inside)] = True
    return found


def _uses(facts: PeakFacts, replay: ReplayedBlocks, own: Mask) -> list[tuple[int, int]]:
    """Return the first allocation in forward and the last in backward of a module's blocks, for each step."""
    steps = read_numbers(facts.rank, "blocks", "step", facts.device_idx)
    known = own & (replay.start >= 0)
    forward, backward = (known & facts.born_in(phase) for phase in ("forward", "backward"))
    both = sorted(set(steps[forward].tolist()) & set(steps[backward].tolist()))
    return [
        (int(replay.start[forward & (steps == step)].min()), int(replay.start[backward & (steps == step)].max()))
        for step in both
    ]


def _inner(replay: ReplayedBlocks, inside: Mask, left: int, again: int) -> tuple[Mask, int]:
    """Return which blocks only the module's own backward reads, and the place of the module's output."""
    output = _output(replay, inside)
    inner = inside & (replay.end > left) & (replay.end > again)
    inner[output] = False
    return inner, output


def _output(replay: ReplayedBlocks, inside: Mask) -> int:
    """Return the place of a forward's last block that is not tiny, such as the statistics of a normalization are."""
    large = inside & (replay.bytes >= _TINY_FRAC * replay.bytes[inside].max())
    return int(np.flatnonzero(large)[np.argmax(replay.start[large])])


def _highest(replay: ReplayedBlocks, blocks: Mask) -> int:
    """Return the peak of these blocks during their module's forward."""
    last = int(replay.start[blocks].max())
    curve = running_sum(replay.bytes[blocks], replay.start[blocks], replay.end[blocks])
    return int(curve.bytes[curve.index <= last].max())
