"""What went wrong on some ranks: missing, killed and slower ranks, and the first that ran out of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.failures.oom import first_error_ns
from gpuledger.analyze.ranks.failures import KILLED, FailedRank, by_attempt, find_failed, left_before
from gpuledger.units import MOST_NAMED, counted, format_ns, name_ranks

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

NOTHING: Mapping[int, str] = MappingProxyType({})
FAR_APART_NS = 1_800_000_000_000
"""Ranks of one job begin within this time: a process group waits no longer for a rank, with PyTorch's defaults."""


def list_problems(ranks: Sequence[Rank], damaged: Mapping[int, str] = NOTHING) -> tuple[str, ...]:
    """Return a sentence for each thing that went wrong on some ranks, a failure first; empty if nothing did.

    ``damaged`` are the ranks that cannot be read, by number, with the reason.
    """
    rules = (who_ran_out, _failed, partial(_missing, damaged=damaged), _worlds, _without_steps, _unequal_steps)
    found = [problem for rule in (*rules, _versions, _devices, _clocks) for problem in rule(ranks)]
    return (*found, *(f"Rank {number} cannot be read: {reason}." for number, reason in damaged.items()))


def _missing(ranks: Sequence[Rank], damaged: Mapping[int, str]) -> list[str]:
    world = _world(ranks)
    if not all(rank.manifest.recorder.has_measured_times for rank in ranks):  # an estimate of some ranks
        return []
    have = {rank.number for rank in ranks} | set(damaged)
    missing = [number for number in range(world) if number not in have] if world <= 100_000 else []
    if not missing:
        return []
    they = name_ranks(missing).capitalize()
    verb = "has" if len(missing) == 1 else "have"
    return [
        f"{they} of {world} {verb} no recording. The process did not start, ended before its first recorded step, or "
        "was recorded on another host: combine the runs with gpuledger merge."
    ]


def _world(ranks: Sequence[Rank]) -> int:
    """Return the number of ranks of the job: of process groups, or that of the launcher if none was made; 0 if neither.

    A rank can fail before there is a process group, because another one never comes.
    """
    groups = [rank.manifest.world.size for rank in ranks if rank.manifest.world is not None]
    return max(groups or [rank.manifest.launched_ranks or 0 for rank in ranks], default=0)


def _worlds(ranks: Sequence[Rank]) -> list[str]:
    sizes = sorted({rank.manifest.world.size for rank in ranks if rank.manifest.world is not None})
    if len(sizes) < 2:
        return []
    return [f"The ranks are of jobs with different numbers of ranks: {', '.join(map(str, sizes))}."]


def who_ran_out(ranks: Sequence[Rank]) -> list[str]:
    """Return a sentence with the first rank that ran out of memory and the ranks that ended after it, or nothing.

    No rank is called the first if the time of an error is not known, or the clocks of the ranks differ.
    """
    failed = {rank.number: rank for rank in _out_of_memory(ranks)}
    if not failed or len(ranks) < 2:
        return []
    times = {number: time_ns for number, rank in failed.items() if (time_ns := first_error_ns(rank)) is not None}
    after = [] if _went_on(list(failed.values())) else [one.rank for one in failures_of(ranks)]
    victims = sorted(set(after) - set(failed))
    if len(failed) > 1 and (len(times) < len(failed) or _clocks(ranks)):
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


def failures_of(ranks: Sequence[Rank]) -> tuple[FailedRank, ...]:
    """Return the ranks that failed, the first one first."""
    return find_failed(ranks, are_times_comparable=not _clocks(ranks))


def _failed(ranks: Sequence[Rank]) -> list[str]:
    """Return a sentence for each attempt of a job in which ranks failed: the first one, and those after it."""
    failed = failures_of(ranks)
    if max(_world(ranks), len(ranks)) < 2 or (_out_of_memory(ranks) and not _went_on(_out_of_memory(ranks))):
        return []
    ends = [rank.manifest.exit_status for rank in ranks if rank.number not in {one.rank for one in failed}]
    attempts = by_attempt(ranks)
    texts = []
    for number, members in attempts.items():
        of_attempt = [one for one in failed if one.attempt == number]
        among = f" of {name_ranks([rank.number for rank in members])}" if len(attempts) > 1 else ""
        left = [] if _clocks(ranks) else left_before(members, of_attempt)
        if left:
            because = _because([replace(one, is_victim=True) for one in of_attempt])
            texts.append(f"{name_ranks(left).capitalize()} exited with status 0 before the others. {because}")
        elif of_attempt:
            are_all = len(of_attempt) == len(ranks)
            texts.append(_failure_text(of_attempt, among, are_all=are_all, are_others_known=None not in ends))
    return [text for text in texts if text]


def _failure_text(failed: Sequence[FailedRank], among: str, *, are_all: bool, are_others_known: bool) -> str:
    """Return which of the ranks failed first, how, and that the others ended because of it; "" if no more is known.

    ``among`` names the ranks of which one was the first, if there are others.
    """
    first, *others = failed
    known = [part for part in (first.how, first.when) if part]
    if not first.is_first:
        ways = Counter(one.how for one in failed)
        if len(ways) == 1:
            return "" if are_all and first.how == KILLED else f"{_they_were(failed)} {first.how}."
        each = ", ".join(f"rank {one.rank} ({one.how})" for one in failed[:MOST_NAMED])
        more = f" and {len(failed) - MOST_NAMED} more" if len(failed) > MOST_NAMED else ""
        return f"{counted(len(failed), 'rank')} failed, and which was the first is not known: {each}{more}."
    if not others:
        if first.how == KILLED:
            return "" if are_all else f"Rank {first.rank} was killed. The other ranks closed their recordings."
        rest = "" if are_all or not are_others_known else " The other ranks did not fail."
        return f"Rank {first.rank} failed: {', '.join(known)}.{rest}"
    return f"Rank {first.rank} failed first{among}: {', '.join(known)}. {_because(others)}"


def _they_were(failed: Sequence[FailedRank]) -> str:
    verb = "was" if len(failed) == 1 else "were"
    return f"{name_ranks([one.rank for one in failed]).capitalize()} {verb if failed[0].is_killed else 'ended with'}"


def _because(others: Sequence[FailedRank]) -> str:
    """Return that ranks ended because of another one, or with an error of their own after it, and how."""
    texts = []
    for is_victim, link in ((True, "because of"), (False, "after")):
        members = [one for one in others if one.is_victim is is_victim]
        if members:
            ways = list(dict.fromkeys(one.how for one in members))
            named = name_ranks([one.rank for one in members]).capitalize()
            texts.append(f"{named} ended {link} it: {' or '.join(ways[:MOST_NAMED])}.")
    return " ".join(texts)


def _out_of_memory(ranks: Sequence[Rank]) -> list[Rank]:
    return [rank for rank in ranks if rank.manifest.oom]


def _went_on(ranks: Sequence[Rank]) -> bool:
    """Return whether the programs of these ranks ended without a failure, so they had handled their errors."""
    return all(rank.manifest.exit_status == 0 for rank in ranks)


def _without_steps(ranks: Sequence[Rank]) -> list[str]:
    without = [rank.number for rank in ranks if rank.manifest.steps_seen == 0]
    most = max((rank.manifest.steps_seen or 0 for rank in ranks), default=0)
    return [f"{name_ranks(without).capitalize()} took no step, other ranks up to {most:,}."] if without and most else []


def _counted(ranks: Sequence[Rank]) -> Sequence[Rank]:
    """Return the ranks with steps to compare: if the steps of some were counted to their end, only these.

    A process without an optimizer, such as one that evaluates what the others train, has steps of another kind.
    """
    ranks = [rank for rank in ranks if rank.manifest.optimizers] or ranks
    to_the_end = [rank for rank in ranks if rank.manifest.has_all_steps or rank.manifest.status == "cut off"]
    return to_the_end if any(rank.manifest.has_all_steps for rank in ranks) else ranks


def _unequal_steps(ranks: Sequence[Rank]) -> list[str]:
    return [text for members in by_attempt(ranks).values() for text in _unequal_steps_of(members)]


def _unequal_steps_of(ranks: Sequence[Rank]) -> list[str]:
    if all(rank.manifest.joins_ranks for rank in ranks):
        return []
    steps = {rank.number: rank.manifest.steps_seen for rank in _counted(ranks) if rank.manifest.steps_seen}
    counts = Counter(steps.values())
    if len(counts) < 2:
        return []
    usual, how_many = counts.most_common(1)[0]
    if 2 * how_many <= len(steps):
        ends = (choose(steps, key=steps.__getitem__) for choose in (min, max))
        few, many = (f"{steps[one]:,} ({name_ranks([one])})" for one in ends)
        return [f"The ranks took different numbers of steps: from {few} to {many}."]
    other = [number for number, count in steps.items() if count != usual]
    least, most = min(steps[one] for one in other), max(steps[one] for one in other)
    took = counted(least, "step") if least == most else f"{least} to {most} steps"
    few = f"{name_ranks(other)} took {took}"
    return [f"The ranks took different numbers of steps: most took {usual}, {few}."]


def _versions(ranks: Sequence[Rank]) -> list[str]:
    versions = {rank.manifest.torch_version for rank in ranks if rank.manifest.torch_version}
    if len(versions) < 2:
        return []
    return [f"The ranks ran different versions of PyTorch: {', '.join(sorted(versions))}."]


def _devices(ranks: Sequence[Rank]) -> list[str]:
    names = {
        device.name for rank in ranks for device in rank.manifest.devices if device.device_idx >= 0 and device.name
    }
    return [f"The ranks ran on different GPUs: {', '.join(sorted(names))}."] if len(names) > 1 else []


def _clocks(ranks: Sequence[Rank]) -> list[str]:
    """Return a sentence if ranks of a process group began so far apart that their clocks cannot be the same."""
    begun = {
        rank.number: rank.manifest.pauses[0].start_ns
        for rank in ranks
        if rank.manifest.world is not None and rank.manifest.pauses
    }
    if not begun:
        return []
    first, last = min(begun, key=begun.__getitem__), max(begun, key=begun.__getitem__)
    apart_ns = begun[last] - begun[first]
    if apart_ns <= FAR_APART_NS:
        return []
    text = f"Rank {last} began {format_ns(apart_ns)} after rank {first}"
    return [f"{text}. Their clocks differ, or they are not of the same job."]
