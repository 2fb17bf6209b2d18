"""Which rank of a run this process is."""

from __future__ import annotations

import os
from pathlib import Path


def claim_rank(run_directory: Path) -> Path:
    """Return the rank directory of this process, made now.

    ``RANK`` where a launcher set it and that is free; a second process of the same rank comes after the last rank of
    the launcher's world. Without ``RANK`` the first free number.
    """
    wanted = os.environ.get("RANK", "")
    world = os.environ.get("WORLD_SIZE", "")
    number = int(wanted) if wanted.isdecimal() else 0
    free_from = int(world) if wanted.isdecimal() and world.isdecimal() else 0
    while True:
        directory = run_directory / f"rank-{number}"
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number = max(number + 1, free_from)
            continue
        return directory
