"""Ranks that failed, and which of them was the first. The others of a job end because of it."""

from __future__ import annotations

import signal
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuledger.units import counted

if TYPE_CHECKING:
    from gpuledger.model.manifest import RankManifest
    from gpuledger.model.run import Rank

KILLED = "killed"
"""How a rank ended that did not exit, if nothing more is known."""
_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals of launchers, schedulers and terminals. A rank with one of them rarely failed on its own."""

_SEEN_LATE_NS = 1_000_000_000
"""Time that may pass on a busy machine until the launcher sees that a process has ended."""
_STOPPED_NS = 60_000_000_000
"""Time in which a program ends that was asked to. Launchers and schedulers kill it after half of it."""


@dataclass(frozen=True)
class FailedRank:
    """A rank with a process that failed. ``is_first`` is None if it is not known which rank of its attempt was first.

    ``is_victim`` is whether something outside of it ended it, or the loss of another rank: not an error of its own.
    ``error`` is the type of the exception that nothing handled. ``attempt`` is 0, or higher for ranks that a launcher
    started again.
    """

    rank: int
    attempt: int
    is_first: bool | None
    is_victim: bool
    exit_status: int | None
    signal: int | None
    error: str | None
    steps_seen: int | None
    has_all_steps: bool
    ended_ns: int | None

    @property
    def is_killed(self) -> bool:
        """Return whether the process was killed, and did not exit."""
        return self.how.startswith(KILLED)

    @property
    def how(self) -> str:
        """Return how it ended: ``killed by SIGKILL``, ``ValueError``, ``exit status 7`` or ``killed``.

        A launcher can end a rank that already exits with an error.
        """
        if self.signal is not None and (self.error is None or self.signal not in _FROM_OUTSIDE):
            known = {int(number): number.name for number in signal.Signals}
            return f"{KILLED} by {known.get(self.signal, f'signal {self.signal}')}"
        return self.error or (f"exit status {self.exit_status}" if self.exit_status else KILLED)

    @property
    def when(self) -> str:
        """Return how many steps it took: ``after at least 6 steps``; "" if none are known."""
        least = "" if self.has_all_steps else "at least "
        return f"after {least}{counted(self.steps_seen, 'step')}" if self.steps_seen else ""


def find_failed(ranks: Sequence[Rank], *, are_times_comparable: bool = True) -> tuple[FailedRank, ...]:
    """Return the ranks that failed, the first of each attempt of a job before its others.

    Ranks that a launcher started again have numbers after those of the first attempt.

    Args:
        ranks: The ranks of a run. If some of the job are missing, one of those can be the first.
        are_times_comparable: Whether the clocks of the ranks agree.

    Source: exit status and time of each process as the launcher saw it; its own exception, and whether that came from
        another rank.
    """
    world = _world(ranks)
    found: list[FailedRank] = []
    for number, members in by_attempt(ranks).items():
        is_first_known = are_times_comparable and len(members) >= world
        found += _of_attempt(number, members, is_first_known)
    return tuple(found)


def by_attempt(ranks: Sequence[Rank]) -> dict[int, list[Rank]]:
    """Return the ranks of each attempt of a job, or of each job that a program starts after the other."""
    world = _world(ranks)
    attempts = defaultdict(list)
    for rank in ranks:
        attempts[rank.number // world if world else 0].append(rank)
    return dict(sorted(attempts.items()))


def _world(ranks: Sequence[Rank]) -> int:
    return max((rank.manifest.world.size for rank in ranks if rank.manifest.world is not None), default=0)


def _of_attempt(number: int, ranks: Sequence[Rank], is_first_known: bool) -> list[FailedRank]:
    were_others_ended = any(rank.manifest.exit_began_ns is not None or rank.manifest.exit_status for rank in ranks)
    failed = [rank for rank in ranks if _has_failed(rank.manifest, were_others_ended)]
    if is_first_known and not _is_an_end_missed(ranks, failed):
        first = _first(failed, are_all_failed=len(failed) == len(ranks))
    else:
        first = None
    found = [
        FailedRank(
            rank=rank.number,
            attempt=number,
            is_first=None if first is None else rank is first,
            is_victim=rank is not first and _is_victim(rank.manifest),
            exit_status=rank.manifest.exit_status,
            signal=rank.manifest.signal,
            error=rank.manifest.exit_error,
            steps_seen=rank.manifest.steps_seen,
            has_all_steps=rank.manifest.has_all_steps,
            ended_ns=_end_ns(rank.manifest),
        )
        for rank in failed
    ]
    return sorted(found, key=lambda one: (not one.is_first, one.rank))


def left_before(ranks: Sequence[Rank], failed: Sequence[FailedRank]) -> list[int]:
    """Return the ranks that had exited without a failure before all ranks that failed, which lost them.

    Empty if a rank failed for another reason, or a time is not known.

    Args:
        ranks: The ranks of one attempt.
        failed: Those of them that failed, the first one first.
    """
    manifests = {rank.number: rank.manifest for rank in ranks}
    ends = [_end_ns(manifests[one.rank]) for one in failed]
    first_ns = min((end for end in ends if end is not None), default=None)
    are_victims = all(_is_victim(manifests[one.rank]) for one in failed)
    if first_ns is None or None in ends or not are_victims or not manifests[failed[0].rank].exit_lost_peer:
        return []
    left = {number: one.exit_began_ns for number, one in manifests.items() if one.exit_status == 0}
    return [number for number, began_ns in sorted(left.items()) if began_ns is not None and began_ns < first_ns]


def _is_an_end_missed(ranks: Sequence[Rank], failed: Sequence[Rank]) -> bool:
    """Return whether the launcher saw how some ranks ended, and did not see it of one that may have failed, too."""
    was_seen = any(rank.manifest.exit_status is not None for rank in ranks)
    known = {rank.number for rank in failed}
    others = [rank.manifest for rank in ranks if rank.number not in known]
    return was_seen and any(one.exit_status is None and one.recorder.has_measured_times for one in others)


def _has_failed(one: RankManifest, were_others_ended: bool) -> bool:
    """Return whether a process failed. One that did not exit while others exited or failed was killed.

    Its status is unknown if its parent process read it before the launcher did.
    """
    if not one.recorder.has_measured_times or _is_ended_by_parent(one):
        return False
    if one.exit_status is not None:
        return one.exit_status != 0
    if one.exit_error is not None or one.status == "cut off":
        return True
    return were_others_ended and one.exit_began_ns is None and not one.has_all_steps


def _is_ended_by_parent(one: RankManifest) -> bool:
    """Return whether the process that started it ended it, which shows no failure."""
    return one.is_ended_by_parent and one.exit_status in (None, 1) and one.exit_error is None and one.status == "closed"


def _end_ns(one: RankManifest) -> int | None:
    """Return the first sign of a process's end: it began to exit, or it had ended.

    What a signal ended while it exited without an error failed when the signal came.
    """
    if one.signal is not None and one.exit_error is None and one.ended_ns is not None:
        return one.ended_ns
    return min((time_ns for time_ns in (one.exit_began_ns, one.ended_ns) if time_ns is not None), default=None)


def _first(failed: Sequence[Rank], *, are_all_failed: bool) -> Rank | None:
    """Return the rank that failed first; None if that is not known, or all of them were ended from outside.

    A rank that lost the connection to another one failed after it. If that is so for all ranks except one, this one was
    first. Otherwise the times decide.
    """
    own = [rank for rank in failed if not _is_from_outside(rank.manifest)]
    if _may_all_be_from_outside(own, failed):
        return None
    causes = [rank for rank in own if not rank.manifest.exit_lost_peer]
    possible = [rank for rank in failed if not (causes and rank.manifest.exit_lost_peer)]
    if len(possible) == 1 and are_all_failed:
        return possible[0]
    times = {rank.number: _end_ns(rank.manifest) for rank in possible}
    if own and None not in times.values():
        return _earliest(possible, {number: time_ns or 0 for number, time_ns in times.items()})
    alone = causes or own or failed
    return alone[0] if len(alone) == 1 else None


def _may_all_be_from_outside(own: Sequence[Rank], failed: Sequence[Rank]) -> bool:
    """Return whether the others were ended from outside at the time at which ranks ended of which nothing is known.

    A scheduler ends all ranks at once, for example at the time limit of a job. Its processes read the status of some
    before the launcher can.
    """
    numbers = {rank.number for rank in own}
    others = [rank.manifest.ended_ns for rank in failed if rank.number not in numbers]
    mine = [rank.manifest.ended_ns for rank in own if _how_is_unknown(rank.manifest)]
    if not others or len(mine) < len(own) or not own:
        return False
    first_ns = min((time_ns for time_ns in mine if time_ns is not None), default=None)
    outside_ns = min((time_ns for time_ns in others if time_ns is not None), default=None)
    return first_ns is not None and outside_ns is not None and outside_ns - first_ns < _SEEN_LATE_NS


def _how_is_unknown(one: RankManifest) -> bool:
    return one.exit_status is None and one.exit_error is None


def _earliest(failed: Sequence[Rank], times_ns: Mapping[int, int]) -> Rank | None:
    """Return the rank with the first sign of its end, or one that was killed before; None if several are equally early.

    A rank that was ended from outside comes first only if none failed on its own within the time that the launcher can
    be late.
    """
    first_ns = min(times_ns.values())
    soon = [rank for rank in failed if times_ns[rank.number] - first_ns < _SEEN_LATE_NS]
    possible = [rank for rank in soon if not _is_from_outside(rank.manifest)] or soon
    first_ns = min(times_ns[rank.number] for rank in possible)
    first = [rank for rank in possible if times_ns[rank.number] == first_ns]
    return _killed_before(first[0], failed) or (first[0] if len(first) == 1 else None)


def _killed_before(first: Rank, failed: Sequence[Rank]) -> Rank | None:
    """Return the rank that was killed before ``first`` seems to have failed; None without one.

    A launcher sends a signal to a rank because of another one only after the other's process has ended, and only
    launchers send SIGKILL for that reason. So a rank that was killed before any other process ended failed on its own.
    The same holds for each signal if ``first`` lost the connection to another rank. The launcher can see a process's
    end later than its peers lose the connection. Ends that it saw at the same time have no order.
    """
    ended = {rank.number: rank.manifest.ended_ns or sys.maxsize for rank in failed}
    killed = min(failed, key=lambda rank: ended[rank.number])
    number, began_ns, is_victim = killed.manifest.signal, _end_ns(first.manifest), first.manifest.exit_lost_peer
    ended_ns = sorted(ended.values())
    if began_ns is None or ended_ns[-1] == sys.maxsize or ended_ns[0] in ended_ns[1:]:
        return None
    is_own = number == signal.SIGKILL or (number is not None and is_victim)
    return killed if is_own and ended_ns[0] - began_ns < _SEEN_LATE_NS else None


def _is_victim(one: RankManifest) -> bool:
    return one.exit_lost_peer or one.signal in (*_FROM_OUTSIDE, signal.SIGKILL)


def _is_from_outside(one: RankManifest) -> bool:
    """Return whether a rank was ended by a launcher, a scheduler or a user before it failed itself.

    A launcher that is asked to end may kill its ranks: srun does so if it gets SIGTERM.
    """
    if one.exit_error not in (None, "KeyboardInterrupt"):
        return False
    if one.stopped_ns is not None and 0 <= (_end_ns(one) or one.stopped_ns) - one.stopped_ns < _STOPPED_NS:
        return True
    return one.signal in _FROM_OUTSIDE or (one.signal is None and one.exit_error is not None)
