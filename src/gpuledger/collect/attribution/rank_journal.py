"""The journal of this process while it grows: one part under way, and those already written."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gpuledger.collect.adapter.guard import do_all
from gpuledger.model.journal.journal import REASONS, JournalWriter, Part
from gpuledger.model.run_writer import check_run, find_run_id


class Drainable(Protocol):
    """Something that collects rows and hands them over."""

    def drain(self, part: Part) -> None:
        """Move what is new into ``part``."""


class RankJournal:
    """Collects rows, notes and pauses, and writes them as parts.

    Args:
        directory: Called once, when there is something to write: claims the rank's directory.
        sources: What is drained into each part before it is written.
    """

    keeps_steps = True
    """Whether each step is written at its end, for a process that is killed."""

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
        """Keep a sentence for whoever reads the run."""
        self.part.notes.append(sentence)

    def fact(self, **facts: Any) -> None:
        """Keep facts; a later one of the same name replaces an earlier one."""
        self.part.facts.update(facts)

    def pause(self, reason: str, started_ns: int, duration_ns: int | None = None) -> None:
        """Note that the program was kept waiting since ``started_ns``, until now where no duration is given."""
        if duration_ns is None:
            duration_ns = time.time_ns() - started_ns
        self.part.add("pauses", reason=REASONS.index(reason), start_ns=started_ns, duration_ns=duration_ns)

    def write(self) -> None:
        """Write what is waiting as one part.

        Raises:
            OSError: it cannot be written; what was waiting is lost.
        """
        self.pass_on(lambda part: self._open_writer().write(part))

    def append(self) -> None:
        """Write what is waiting at the end of a file that grows, for a fraction of the time.

        Raises:
            OSError: it cannot be written; what was waiting is lost.
        """
        self.pass_on(lambda part: self._open_writer().append(part))

    def pass_on(self, write: Callable[[Part], None]) -> None:
        """Take what the sources have, and give what is waiting to ``write`` whatever one of them raises."""
        part, self.part = self.part, Part()
        sources = [partial(source.drain, part) for source in self.sources]
        do_all([*sources, lambda: write(part)])

    def directory(self) -> Path:
        """Return the rank's directory; it is claimed when first needed.

        Raises:
            RunReplacedError: another recording has taken the place of the run.
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
