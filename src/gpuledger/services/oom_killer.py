"""Whether the kernel ended a program because the host, or the program's memory limit, was out of memory."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuledger.processes.memory_groups import memory_groups

_MACHINE = Path("/proc/vmstat")
_OF_A_GROUP = ("memory.events", "memory.oom_control")
"""Files of a cgroup with the number of kills, in version 2 and in version 1. Groups below it are counted, too."""


def read_kills() -> dict[str, int]:
    """Return file -> number of processes that the kernel has ended because memory was full.

    The files are those of the machine, and of the cgroups with limits for this process.
    """
    found = {}
    for place in (*(group / name for group in memory_groups() for name in _OF_A_GROUP), _MACHINE):
        try:
            lines = place.read_text().splitlines()
        except OSError:
            continue
        counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
        if counts and counts[0].isdecimal():
            found[str(place)] = int(counts[0])
    return found


def killed_notes(
    status: int, before: Mapping[str, int], read: Callable[[], Mapping[str, int]] = read_kills
) -> list[str]:
    """Return a note on why a program received SIGKILL; none if it did not.

    Args:
        status: Exit status, negative for a signal.
        before: :func:`read_kills` before the program started.
        read: Reads it now.
    """
    if status not in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return []
    now = read()
    more = [place for place in before if now.get(place, 0) > before[place]]
    if any(place != str(_MACHINE) for place in more):
        return ["The kernel ended the program with SIGKILL: host memory reached the limit of its cgroup."]
    if more:
        kills = now[more[0]] - before[more[0]]
        return [
            "The program was ended with SIGKILL. Host memory was full: meanwhile the kernel ended "
            f"{kills:,} {'process' if kills == 1 else 'processes'} on this machine."
        ]
    return ["The program was ended with SIGKILL, but not by this machine's out-of-memory killer."]
