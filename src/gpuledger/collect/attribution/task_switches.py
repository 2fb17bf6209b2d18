"""Scope changes when an event loop switches tasks: no scope is entered or left, but the current one changes."""

from __future__ import annotations

import sys
from contextvars import Context
from typing import Any

from gpuledger.collect.adapter.instrument import Observation
from gpuledger.collect.adapter.observer import Absorbs, Observer
from gpuledger.collect.attribution import scopes


class TaskSwitches:
    """Reports the scope of each callback of an event loop. Supports loops that run callbacks in Python.

    Args:
        changed: Called with the scope of a callback before it runs, and with the loop's own scope after it.
        absorbs: Handles an exception raised in gpuledger's code.
    """

    def __init__(self, changed: scopes.Listener, absorbs: Absorbs) -> None:
        self.is_wanted = False
        """Whether the program uses scopes. Until then, a callback costs one check of this attribute."""
        self._changed = changed
        self._absorbs = absorbs
        self._observation: Observation | None = None

    def watch(self) -> None:
        """Start observing if the program has imported asyncio.

        Call it again later, in case the program imports it then.

        Raises:
            CannotInstrumentError: the event loop's callbacks are not those of a supported Python.
        """
        events = getattr(sys.modules.get("asyncio"), "events", None)
        if events is not None and self._observation is None:
            observer = Observer(self._enter, self._leave, self._fail, absorbs=self._absorbs)
            self._observation = Observation(events.Handle._run, observer)

    def stop(self) -> None:
        """Stop observing."""
        self.is_wanted = False
        if self._observation is not None:
            self._observation.remove()
            self._observation = None

    def _enter(self, handle: Any) -> bool | None:
        if not self.is_wanted:
            return None
        context: Context = handle._context
        self._changed(scopes.current_level(context), None)
        return True

    def _leave(self, _entered: bool, _result: Any) -> None:
        self._changed(scopes.current_level(), None)  # the scope of the loop itself

    def _fail(self, entered: bool) -> None:
        self._leave(entered, None)
