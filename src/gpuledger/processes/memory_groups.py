"""The cgroups with memory limits for this process: its own and all above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MEMBERSHIP = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


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


def _from(root: Path, place: str) -> Iterator[Path]:
    """Yield the directory of a path below a root, and all above it up to the root."""
    inner = PurePosixPath(place.lstrip("/"))
    if ".." in inner.parts:  # it lies outside of what this process can see
        inner = PurePosixPath()
    for below in (inner, *inner.parents) if inner.parts else (inner,):
        directory = root / below
        if directory.is_dir():
            yield directory
