"""What the callbacks of training frameworks share: they mark steps, and record where nothing else does."""

from __future__ import annotations

from typing import Any

from gpuledger.collect.session import active
from gpuledger.errors import GpuLedgerError
from gpuledger.services.recording import Recording, record

PREFIX = "gpuledger/"
"""Beginning of the names under which figures are logged."""

ALL_PASSES = "memory,energy,time"


class RecordedTraining:
    """One training. Under ``gpuledger run`` or inside ``gpuledger.record``, marks its steps; otherwise records it.

    Args:
        name: Name of the recording.
        how: Arguments of ``gpuledger.record``. By default, ``passes`` is all of them.
    """

    def __init__(self, name: str, how: dict[str, Any]) -> None:
        self.recording: Recording | None = None
        self._name = name
        self._how = {"passes": ALL_PASSES, **how}

    def begin(self) -> None:
        """The training begins.

        Raises:
            UsageError: the recording's output exists.
        """
        if active.current() is None:
            self.recording = record(self._name, **self._how)
            self.recording.__enter__()
        session = active.current()
        if session is not None:
            session.steps.expect_marks()

    def mark(self) -> None:
        """A step has ended."""
        session = active.current()
        if session is not None:
            session.mark_step()

    def end(self) -> dict[str, float]:
        """End the training. Return the metrics of its own recording, by name in the logger.

        Empty under ``gpuledger run``, which prints its results at the end of the program.
        """
        recording = self.recording
        if recording is None:
            return {}
        recording.__exit__(None, None, None)
        try:
            return {f"{PREFIX}{name}": value for name, value in recording.metrics.items()}
        except GpuLedgerError:  # nothing was recorded: the run says why
            return {}
