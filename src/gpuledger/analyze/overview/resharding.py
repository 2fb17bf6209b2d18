"""A replay of sharded training in which gathered weights are freed after forward, and gathered again for backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuledger.analyze.memory.lifetimes import I64, distinct_numbers, read_numbers
from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.peak_facts import Mask, PeakFacts
from gpuledger.analyze.overview.what_if import ReplayedBlocks, as_recorded
from gpuledger.units import format_bytes

FLAT, OTHER_LIBRARY = "FullyShardedDataParallel", "DeepSpeedEngine"
"""Classes of modules by which FSDP1 and DeepSpeed are known."""


@dataclass(frozen=True)
class _Gather:
    """Weights that were gathered together in a forward and kept for the backward, by the numbers of events.

    ``left`` is the last allocation of their modules in forward, ``begins`` the first one in backward.
    """

    blocks: I64
    left: int
    begins: int


def kept_gathered(facts: PeakFacts) -> Finding | None:
    """Suggest to reshard after forward, if weights stay gathered from forward to backward."""
    classes = set(facts.rank.table("modules", ("class_name",))["class_name"].to_pylist())  # wrappers share a path
    if OTHER_LIBRARY in classes:
        return None
    gathered = facts.of("gathered_weight")
    kept = list(_kept(facts, gathered)) if facts.held(gathered) else []
    if not kept:
        return None
    size = facts.held(np.isin(np.arange(gathered.size), np.concatenate([one.blocks for one in kept])))
    return Finding(
        search="gathered_weight",
        command=facts.show("--by", "category"),
        title="Weights stay gathered from forward to backward",
        advice=f"{_resharding_option(facts, is_flat=FLAT in classes)} frees the gathered weights of a module after its "
        "forward and gathers them again for its backward, which takes more communication",
        evidence=f"{format_bytes(size)} of gathered weights at the peak are kept after the forward of their modules",
        saved_from="the peak, with the weights of two modules gathered at a time in backward",
        saving_bytes=facts.peak_bytes - _resharded(facts, kept).peak_bytes,
        action="reshard weights after forward",
    )


def _resharding_option(facts: PeakFacts, *, is_flat: bool) -> str:
    """Return what frees gathered weights after forward. With FSDP1, ranks can hold copies of the same shards."""
    if not is_flat:
        return "fully_shard(..., reshard_after_forward=True)"
    world = facts.rank.manifest.world
    are_copied = world is not None and 1 < max(facts.parts.values(), default=1) < world.size
    return f"ShardingStrategy.{'HYBRID_SHARD' if are_copied else 'FULL_SHARD'}"


def _kept(facts: PeakFacts, gathered: Mask) -> Iterator[_Gather]:
    """Yield the gathers of all forwards, in their order, of which the weights are still there in backward.

    Weights that are allocated with nothing in between are gathered together. They are needed until the module around
    all of them has ended.
    """
    replay = as_recorded(facts)
    known = (replay.start >= 0) & (facts.module_id >= 0)
    forward, backward = (facts.born_in(phase) & known for phase in ("forward", "backward"))
    mine = gathered & forward
    order = np.flatnonzero(forward)
    order = order[np.argsort(replay.start[order], kind="stable")]
    breaks = np.flatnonzero(np.diff(mine[order].astype(np.int8))) + 1
    steps, around = read_numbers(facts.rank, "blocks", "step", facts.device_idx), _around(facts)
    for group in np.split(order, breaks):
        if not group.size or not mine[group[0]]:
            continue
        inside = np.isin(facts.module_id, _inside(around, distinct_numbers(facts.module_id[group]).tolist()))
        inside &= (steps == steps[group[0]]) & (replay.start > replay.start[group].max())
        after = replay.start[backward & inside]
        begins = int(after.min(initial=np.iinfo(np.int64).max))
        used = replay.start[forward & inside & ~gathered & (replay.start < begins)]
        if after.size and used.size and (replay.end[group] > begins).all():
            yield _Gather(group, int(used.max()), begins)


def _around(facts: PeakFacts) -> dict[int, list[int]]:
    """Return each module's id -> the ids of the modules around it, the outermost one first, and its own."""
    table = facts.rank.table("modules", ("module_id", "parent_id"))
    parents = dict(zip(table["module_id"].to_pylist(), table["parent_id"].to_pylist(), strict=True))
    found: dict[int, list[int]] = {}
    for module_id in parents:
        chain = [module_id]
        while (parent := parents.get(chain[-1])) is not None and parent not in chain:
            chain.append(parent)
        found[module_id] = chain[::-1]
    return found


def _inside(around: dict[int, list[int]], module_ids: list[int]) -> list[int]:
    """Return the ids of all modules inside the innermost module that is around some; those of all if there is none."""
    first, *others = (around[one] for one in module_ids)
    common = [one for one in first if all(one in chain for chain in others)]
    return [one for one, chain in around.items() if not common or common[-1] in chain]


def _resharded(facts: PeakFacts, kept: list[_Gather]) -> ReplayedBlocks:
    """Return the blocks as if kept weights were freed after forward.

    They are gathered again when the backward of the modules after theirs begins. Their own backward begins with a
    copy, so that they are there twice for a moment.
    """
    replay = as_recorded(facts)
    end, more = replay.end.copy(), []
    following = [*kept[1:], kept[-1]]
    for one, after in zip(kept, following, strict=True):
        is_next = one.left <= after.begins <= one.begins
        again = after.begins if is_next else one.begins
        if again <= one.left + 1:
            continue
        end[one.blocks] = one.left + 1
        for at in one.blocks.tolist():
            size = int(replay.bytes[at])
            more += [(size, again, int(replay.end[at])), (size, one.begins - 1, one.begins)]
    sizes, starts, ends = zip(*more, strict=True) if more else ((), (), ())
    return ReplayedBlocks(replay.bytes, replay.start, end).plus(sizes, starts, ends)
