"""The journal of this process during the recording: the part in progress, and the parts already written."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpuledger.collect.adapter.guard import do_all
from gpuledger.model.journal.journal import REASONS, JournalWriter, Part
from gpuledger.model.run_writer import check_run, find_run_id


class Drainable(Protocol):
    """A source of rows for the journal."""

    def drain(self, part: Part) -> None:
        """Move the rows collected since the last drain into ``part``."""


class RankJournal:
    """Collects rows, notes and pauses, and writes them as parts.

    Args:
        directory: Called once, before the first write. Creates the rank's directory.
        sources: Drained into each part before it is written.
    """

    keeps_steps = True
    """Whether each step is written when it ends, so that it is kept if the process is killed."""

    def __init__(self, directory: Callable[[], Path], sources: list[Drainable]) -> None:
        self.part = Part()
        self.sources = sources
        self._directory = directory
        self._writer: JournalWriter | None = None

    @property
    def begun(self) -> bool:
        """Return whether a part has been written."""
        return self._writer is not None

    def note(self, sentence: str) -> None:
        """Add a note that is shown with the run."""
        self.part.notes.append(sentence)

    def fact(self, **facts: Any) -> None:
        """Store facts. A later fact of the same name replaces an earlier one."""
        self.part.facts.update(facts)

    def pause(self, reason: str, started_ns: int, duration_ns: int | None = None) -> None:
        """Record that the program was paused from ``started_ns``, until now if no duration is given.

        Unix time in ns.
        """
        if duration_ns is None:
            duration_ns = time.time_ns() - started_ns
        self.part.add("pauses", reason=REASONS.index(reason), start_ns=started_ns, duration_ns=duration_ns)

    def write(self) -> None:
        """Write the pending rows as one part.

        Raises:
            OSError: the file cannot be written; the pending rows are lost.
        """
        self.pass_on(lambda part: self._open_writer().write(part))

    def append(self) -> None:
        """Append the pending rows to a growing file, which is much faster than writing a part.

        Raises:
            OSError: the file cannot be written; the pending rows are lost.
        """
        self.pass_on(lambda part: self._open_writer().append(part))

    def pass_on(self, write: Callable[[Part], None]) -> None:
        """Drain the sources and pass the pending rows to ``write``, even if a source raises."""
        part, self.part = self.part, Part()
        sources = [partial(source.drain, part) for source in self.sources]
        do_all([*sources, lambda: _raising_at_file_limit(partial(write, part))])

    def directory(self) -> Path:
        """Return the rank's directory. Creates it on first use.

        Raises:
            RunReplacedError: another recording has replaced the run.
        """
        writer = self._open_writer()
        writer.check()
        return writer.directory.parent

    def _open_writer(self) -> JournalWriter:
        if self._writer is None:
            rank_directory = self._directory()
            run = rank_directory.parent
            self._writer = JournalWriter(rank_directory / "journal", check=partial(check_run, run, find_run_id(run)))
        return self._writer


def _raising_at_file_limit(write: Callable[[], None]) -> None:
    """Call ``write``. Beyond RLIMIT_FSIZE it raises OSError, without the signal for it.

    Python ignores that signal. A program can give it back its default, which ends the process, or handle it.
    """
    if signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN:
        write()
        return
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
    try:
        write()
    finally:
        if signal.SIGXFSZ not in blocked:
            signal.sigtimedwait({signal.SIGXFSZ}, 0)  # ours, which is still pending
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGXFSZ})
