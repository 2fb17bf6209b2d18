"""The cgroups with memory limits for this process: its own and all above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MEMBERSHIP = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")

_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""Files of a cgroup with its limit, in version 2 and in version 1."""
_UNLIMITED_BYTES = 1 << 60


def memory_groups() -> list[Path]:
    """Return the directories of these cgroups, the own one first; empty where there are none.

    In a container, those above its own one are not visible, and its own one is the root.

    Source: lines ``ID:CONTROLLERS:PATH`` of /proc/self/cgroup. Version 2 has no controllers; version 1 has a directory
    for each controller.
    """
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, place = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            found += _from(MOUNT, place)
        elif "memory" in controllers.split(","):
            found += _from(MOUNT / "memory", place)
    return found


def host_limit_bytes() -> int | None:
    """Return the lowest memory limit of the cgroups that this process belongs to; None if there is none."""
    return min((limit for group in memory_groups() if (limit := _limit_of(group)) is not None), default=None)


def _limit_of(group: Path) -> int | None:
    for name in _LIMITS:
        try:
            text = (group / name).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED_BYTES else None
    return None


def _from(root: Path, place: str) -> Iterator[Path]:
    """Yield the directory of a path below a root, and all above it up to the root."""
    inner = PurePosixPath(place.lstrip("/"))
    if ".." in inner.parts:  # it lies outside of what this process can see
        inner = PurePosixPath()
    for below in (inner, *inner.parents) if inner.parts else (inner,):
        directory = root / below
        if directory.is_dir():
            yield directory
