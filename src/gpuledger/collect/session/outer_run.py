"""A program that records itself, below a recording that was started from outside: the outer one holds everything."""

from __future__ import annotations

import weakref
from pathlib import Path

from gpuledger.collect.session.session import Session, current

NOTE = "The program calls gpuledger in its own code. This run replaces the recordings that it would make."

_noted: weakref.WeakSet[Session] = weakref.WeakSet()


def find_outer_run() -> Path | None:
    """Return the run that this process is recorded into from outside; None where it is not.

    Whoever records from inside the program asks first, and does nothing where there is one: the program must run as
    it would without ``gpuledger run``. The run notes it once.
    """
    session = current()
    if session is None or not session.from_outside:
        return None
    if session not in _noted:
        _noted.add(session)
        session.journal.note(NOTE)
    return session.settings.run_directory
