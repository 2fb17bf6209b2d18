"""A memory recording requested while the program runs: key `d` in the live view.

A program's recording ends after a few steps and removes its hooks. If the program was started with ``run --live``, one
hook remains: before each optimizer step it checks whether a request file exists. The requested recording becomes a run
of its own, ``NAME-asked-1.ledger``, because a run contains one recording.

torch iterates over its hooks while it calls them, so hooks can be added or removed only in the last one. That is why a
recording begins only if this hook is the last, and why it ends by itself.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.collect.adapter.guard import Guard, describe, take_out_all
from gpuledger.collect.adapter.optimizer_hooks import OptimizerHook, before_steps
from gpuledger.collect.launch.ranks import check_launched_run, leave_note
from gpuledger.model.run_directory import ASKED, LISTENING, SUFFIX
from gpuledger.model.run_writer import RunWriter, new_manifest

if TYPE_CHECKING:
    from gpuledger.collect.launch.settings import RecordSettings
    from gpuledger.collect.session.session import Session

STEPS = 3
"""Number of recorded steps. The first begins with an optimizer step."""

NOTE = (
    "The recording began while the program ran. Steps are counted from there, and "
    "the first has only the optimizer's part."
)


class Listener:
    """Checks for requests to this process. Costs one file system access per step."""

    def __init__(self, settings: RecordSettings) -> None:
        self._settings = settings
        self._request = settings.run_directory / ASKED
        self._session: Session | None = None
        self._run: RunWriter | None = None
        self._guarded = Guard(self._fail)
        check_launched_run(settings.run_directory)
        self._hook: OptimizerHook | None = None
        (settings.run_directory / LISTENING).touch()
        self.stop = self._guarded.for_good(self._stop)
        """Stop the recording in progress and check for no more requests."""
        atexit.register(self.stop)
        self._hook = before_steps(self._guarded(self._before_step), self._guarded.absorbs)

    def _stop(self) -> None:
        self._guarded.ended = True
        atexit.unregister(self.stop)
        take_out_all([self._remove_hook, self._finish])

    def _remove_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _before_step(self, *_: Any) -> None:
        if self._session is not None:
            if self._session.ended:
                self._finish()
        elif os.path.exists(self._request) and self._hook is not None and self._hook.is_last:
            self._begin()

    def _begin(self) -> None:
        from gpuledger.collect.session import active
        from gpuledger.errors import UsageError

        try:
            active.refuse_second()
        except UsageError:
            return  # the run's first recording is in progress: check again at the next step
        try:
            self._request.unlink()
        except FileNotFoundError:
            return  # another rank has taken the request
        self._run = _open_beside(self._settings.run_directory)
        settings = replace(
            self._settings, run_directory=self._run.path, first_step=1, last_step=STEPS, passes={"memory": 0}
        )
        settings = replace(settings, flight_recorder=False)
        self._session = active.start_recording(settings, self._run.path / "rank-0", from_outside=True)

    def _finish(self) -> None:
        from gpuledger.collect.session import active

        session, self._session = self._session, None
        if session is not None and self._run is not None:
            active.stop_recording(session, "last step")
            self._run.close((NOTE,))

    def _fail(self, error: BaseException) -> None:
        """Stop checking, and write the reason to the run. The program continues."""
        self._guarded.ended = True
        with suppress(OSError):  # the run's directory is gone or full
            leave_note(self._settings.run_directory, f"Recording on demand stopped working: {describe(error)}")
        self._remove_hook()
        if os.environ.get("GPULEDGER_DEBUG"):
            raise error


def listen_from_environment() -> Listener | None:
    """Return the listener of this process; None if the program was not started with ``run --live``."""
    from gpuledger.collect.launch.settings import settings_from

    settings = settings_from() if os.environ.get("GPULEDGER_LISTEN") else None
    return None if settings is None else Listener(settings)


def _open_beside(run_directory: Path) -> RunWriter:
    """Return the writer of a new run in the same directory as another."""
    stem = run_directory.name.removesuffix(SUFFIX)
    for number in count(1):
        path = run_directory.with_name(f"{stem}-asked-{number}{SUFFIX}")
        try:
            return RunWriter.open(path, new_manifest(path.name, sys.orig_argv, {}))
        except FileExistsError:
            continue
    raise AssertionError("unreachable")
