"""What tells a process from all others, also from those of other hosts and later ones with the same id."""

from __future__ import annotations

import socket
from pathlib import Path

_START_TIME = 19
"""Field of ``/proc/PID/stat`` after the name."""


def identity_of(pid: int) -> str:
    """Return id, start time and host of a process. They stay the same if it starts another program with ``exec``.

    The start time is "-" where it is not known.
    """
    try:
        started = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[_START_TIME]
    except (OSError, IndexError):
        started = "-"
    return f"{pid} {started} {socket.gethostname()}"
