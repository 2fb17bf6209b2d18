"""Detect that a program which records itself also runs under ``gpuledger run``.

The outer recording then has all data.
"""

from __future__ import annotations

import weakref
from pathlib import Path

from gpuledger.collect.session.active import current
from gpuledger.collect.session.session import Session

NOTE = "The program calls gpuledger in its own code. This run replaces the recordings that it would make."

_noted: weakref.WeakSet[Session] = weakref.WeakSet()


def find_outer_run() -> Path | None:
    """Return the outer run that this process is recorded into; None if there is none.

    A recording started from inside the program calls this first and does nothing if there is an outer run: the program
    must behave as it would without ``gpuledger run``. The outer run records this once.
    """
    session = current()
    if session is None or not session.from_outside:
        return None
    if session not in _noted:
        _noted.add(session)
        session.journal.note(NOTE)
    return session.settings.run_directory
