"""What every Python process below a recorded command loads at its start."""

from __future__ import annotations

import os


def bootstrap_directory() -> str:
    """Return the directory that must lead ``PYTHONPATH`` for a process to be recorded."""
    return os.path.dirname(os.path.abspath(__file__))
