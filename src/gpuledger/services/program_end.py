"""How a recorded program ended, and whether the kernel ended a process of it because host memory was full.

Imported beside the program, so it imports nothing that reads a run's events.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger.collect.launch.ends import ProcessEnd
from gpuledger.model.run_directory import rank_directories
from gpuledger.processes.memory_groups import host_limit_bytes, memory_groups

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit statuses of a program that received SIGKILL, and of a shell that waited for such a program."""
_MACHINE = Path("/proc/vmstat")
_KILLS = (("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill"))
"""Files of a cgroup with the number of kills, in version 2 and in version 1. Version 2 adds the groups below it."""
_REACHED = (("memory.events", "oom"), ("memory.failcnt", ""))
"""Files with the number of times that its limit was reached."""


@dataclass(frozen=True)
class KillCounters:
    """Counters of the kernel, by file: of processes that it has ended because memory was full, and of limits reached.

    ``limit_bytes`` is the lowest memory limit of this process's cgroups.
    """

    kills: Mapping[str, int] = field(default_factory=dict)
    reached: Mapping[str, int] = field(default_factory=dict)
    limit_bytes: int | None = None


@dataclass(frozen=True)
class KernelKills:
    """What the kernel did while a program ran.

    ``processes`` is the number of processes that it ended because memory was full: of the program's cgroups if
    ``at_limit``, otherwise of the machine. ``limit_bytes`` is the limit that was reached.
    """

    processes: int
    at_limit: bool = False
    limit_bytes: int | None = None


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended: its exit status, what the kernel did meanwhile, and the end of processes by their id.

    ``kills`` is None if the kernel's counters cannot be read. Of a process without an end, nothing is known.
    ``stopped_ns`` is when the program was asked to end, by a signal; None if it was not.
    """

    status: int
    kills: KernelKills | None = None
    processes: Mapping[int, ProcessEnd] = field(default_factory=dict)
    stopped_ns: int | None = None


def read_kills() -> KillCounters:
    """Return the counters of the machine, and of the cgroups with limits for this process."""
    groups = memory_groups()
    kills = _read((group / name, key) for group in groups for name, key in _KILLS)
    reached = _read((group / name, key) for group in groups for name, key in _REACHED)
    return KillCounters({**kills, **_read([(_MACHINE, "oom_kill")])}, reached, host_limit_bytes())


def kills_between(before: KillCounters, after: KillCounters) -> KernelKills | None:
    """Return what the kernel did between two readings; None if its counters cannot be read.

    A kill is counted in the cgroup of its process also if all memory of the machine was in use.
    """
    if not before.kills:
        return None
    more = {place: after.kills.get(place, 0) - number for place, number in before.kills.items()}
    in_groups = max((number for place, number in more.items() if place != str(_MACHINE)), default=0)
    if in_groups > 0 and any(after.reached.get(place, 0) > number for place, number in before.reached.items()):
        return KernelKills(in_groups, at_limit=True, limit_bytes=before.limit_bytes)
    return KernelKills(max(in_groups, more.get(str(_MACHINE), 0)))


def killed_notes(status: int, kills: KernelKills | None, run_directory: Path) -> list[str]:
    """Return a note on why a program received SIGKILL; none if it did not, or if that is not known.

    If the kernel has ended it, its ranks have that as an out-of-memory error. The note is for a run without ranks.
    """
    if status not in KILLED or kills is None or (kills.processes and rank_directories(run_directory)):
        return []
    if kills.at_limit:
        return ["The kernel ended the program with SIGKILL: host memory reached the limit of its cgroup."]
    if kills.processes:
        return [
            "The program was ended with SIGKILL. Host memory was full: meanwhile the kernel ended "
            f"{kills.processes:,} {'process' if kills.processes == 1 else 'processes'} on this machine."
        ]
    return ["The program was ended with SIGKILL, but not by this machine's out-of-memory killer."]


def _read(counters: Iterable[tuple[Path, str]]) -> dict[str, int]:
    """Return file -> counter. The file has it on a line with its name, or alone."""
    found = {}
    for place, name in counters:
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        words = [line.split() for line in lines]
        counts = [one[-1] for one in words if one[:-1] == ([name] if name else [])]
        if counts and counts[0].isdecimal():
            found[str(place)] = int(counts[0])
    return found
