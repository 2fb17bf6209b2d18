"""Code that every Python process started by a recorded command loads at startup.

Whatever may import ``collect.launch`` may import it. Start reading at ``sitecustomize``.
"""

from __future__ import annotations

import os


def bootstrap_directory() -> str:
    """Return the directory that must come first in ``PYTHONPATH`` so that a process is recorded."""
    return os.path.dirname(os.path.abspath(__file__))
