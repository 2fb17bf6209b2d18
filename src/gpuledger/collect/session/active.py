"""The recording in progress in this process. There is at most one."""

from __future__ import annotations

from pathlib import Path

from gpuledger.collect.launch.settings import RecordSettings, settings_from
from gpuledger.collect.session.session import Session
from gpuledger.errors import UsageError

_session: Session | None = None


def start_from_environment() -> Session | None:
    """Start recording this process as ``GPULEDGER_RUN`` says; None if it is not to be recorded."""
    global _session
    settings = settings_from()
    if settings is None or _session is not None:
        return _session
    _session = Session(settings)
    _session.start()
    return _session


def current() -> Session | None:
    """Return the recording in progress in this process."""
    return _session if _session is not None and not _session.ended else None


def refuse_second() -> None:
    """Check that no recording is in progress.

    Raises:
        UsageError: a recording is in progress in this process.
    """
    if current() is not None:
        raise UsageError("record: another recording is active in this process", hint="End that recording first")


def start_recording(settings: RecordSettings, rank_directory: Path, *, from_outside: bool = False) -> Session:
    """Start a recording from Python; with ``from_outside``, one requested from outside while the program runs.

    Raises:
        UsageError: a recording is in progress in this process.
    """
    global _session
    refuse_second()
    _session = Session(settings, rank_directory=lambda: rank_directory, from_outside=from_outside)
    _session.start()
    return _session


def stop_recording(session: Session, reason: str) -> None:
    """Stop a recording and write the last of its journal."""
    global _session
    session.finish(reason)
    if _session is session:
        _session = None
