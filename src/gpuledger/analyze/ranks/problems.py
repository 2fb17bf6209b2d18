"""What went wrong on some ranks: missing, killed and slower ranks, and the first that ran out of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.failures.oom import first_error_ns
from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

MOST_NAMED = 8


def list_problems(ranks: Sequence[Rank]) -> tuple[str, ...]:
    """Return a sentence for each thing that went wrong on some ranks; empty if nothing did."""
    found = [*_missing(ranks), *who_ran_out(ranks), *_cut_off(ranks), *_unequal_steps(ranks), *_versions(ranks)]
    return tuple(found)


def name_ranks(numbers: Sequence[int]) -> str:
    """Return ``rank 3``, ``ranks 1 and 2``, or the first ranks and how many more there are."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > MOST_NAMED:
        return f"ranks {', '.join(map(str, numbers[:MOST_NAMED]))} and {len(numbers) - MOST_NAMED} more"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _missing(ranks: Sequence[Rank]) -> list[str]:
    sizes = Counter(rank.manifest.world.size for rank in ranks if rank.manifest.world is not None)
    if not sizes:
        return []
    world = max(sizes)
    have = {rank.number for rank in ranks}
    missing = [number for number in range(world) if number not in have] if world <= 100_000 else []
    if not missing:
        return []
    they = name_ranks(missing).capitalize()
    verb = "has" if len(missing) == 1 else "have"
    return [
        f"{they} of {world} {verb} no recording. The process did not start, ended before its first recorded step, or "
        "was recorded on another host: combine the runs with gpuledger merge."
    ]


def who_ran_out(ranks: Sequence[Rank]) -> list[str]:
    """Return a sentence with the first rank that ran out of memory and the ranks that ended after it, or nothing.

    No rank is called the first if the time of an error is not known.
    """
    failed = {rank.number: rank for rank in ranks if rank.manifest.oom}
    if not failed:
        return []
    times = {number: time_ns for number, rank in failed.items() if (time_ns := first_error_ns(rank)) is not None}
    victims = [rank.number for rank in ranks if rank.number not in failed and rank.manifest.status == "cut off"]
    if len(failed) > 1 and len(times) < len(failed):
        text = f"{name_ranks(sorted(failed)).capitalize()} ran out of memory"
    else:
        first = min(failed, key=lambda number: times.get(number, 0))
        others = sorted(set(failed) - {first})
        step = failed[first].manifest.oom[0].step
        text = f"Rank {first} ran out of memory first" + ("" if step is None else f", in step {step:,}")
        text += f", then {name_ranks(others)}" if others else ""
    if victims:
        text += f". {name_ranks(victims).capitalize()} ended because of it, without an out-of-memory error"
    return [f"{text}."]


def _cut_off(ranks: Sequence[Rank]) -> list[str]:
    if any(rank.manifest.oom for rank in ranks):
        return []
    killed = [rank.number for rank in ranks if rank.manifest.status == "cut off"]
    if not killed or len(killed) == len(ranks):
        return []
    verb = "was" if len(killed) == 1 else "were"
    return [f"{name_ranks(killed).capitalize()} {verb} killed. The other ranks closed their recordings."]


def _unequal_steps(ranks: Sequence[Rank]) -> list[str]:
    steps = {rank.number: rank.manifest.steps_seen for rank in ranks if rank.manifest.steps_seen is not None}
    counts = Counter(steps.values())
    if len(counts) < 2:
        return []
    usual = counts.most_common(1)[0][0]
    other = [number for number, count in steps.items() if count != usual]
    few = (
        f"{name_ranks(other)} took {counted(steps[other[0]], 'step')}"
        if len(other) == 1
        else (f"{name_ranks(other)} took {min(steps[one] for one in other)} to {max(steps[one] for one in other)}")
    )
    return [f"The ranks took different numbers of steps: most took {usual}, {few}."]


def _versions(ranks: Sequence[Rank]) -> list[str]:
    versions = {rank.manifest.torch_version for rank in ranks if rank.manifest.torch_version}
    if len(versions) < 2:
        return []
    return [f"The ranks ran different versions of PyTorch: {', '.join(sorted(versions))}."]
