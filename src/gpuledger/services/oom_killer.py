"""Whether the kernel ended a program because the host, or the program's memory limit, was out of memory."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path

_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat")


def read_kills(places: tuple[str, ...] = _COUNTS) -> dict[str, int]:
    """Return file -> number of processes that the kernel has ended because memory was full."""
    found = {}
    for place in places:
        try:
            lines = Path(place).read_text().splitlines()
        except OSError:
            continue
        counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
        if counts and counts[0].isdecimal():
            found[place] = int(counts[0])
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
    if any("cgroup" in place for place in more):
        return ["The kernel ended the program with SIGKILL: host memory reached the limit of its cgroup."]
    if more:
        kills = now[more[0]] - before[more[0]]
        return [
            "The program was ended with SIGKILL. Host memory was full: meanwhile the kernel ended "
            f"{kills:,} {'process' if kills == 1 else 'processes'} on this machine."
        ]
    return ["The program was ended with SIGKILL, but not by this machine's out-of-memory killer."]
