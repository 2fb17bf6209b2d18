"""Where an event loop goes from one task to another, the scope changes without being entered or left."""

from __future__ import annotations

import sys
from contextvars import Context
from typing import Any

from gpuledger.collect.adapter.instrument import Absorbs, Observation, Observer
from gpuledger.collect.attribution import scopes


class TaskSwitches:
    """Tells of the scope that each callback of an event loop runs in. Of loops that run their callbacks in Python.

    Args:
        changed: Told of the scope of a callback before it, and of the loop's own after it. Raises nothing of ours.
        absorbs: Takes what is raised in our code.
    """

    def __init__(self, changed: scopes.Listener, absorbs: Absorbs) -> None:
        self.is_wanted = False
        """Whether there are scopes to tell of; until then a callback costs one look at this."""
        self._changed = changed
        self._absorbs = absorbs
        self._observation: Observation | None = None

    def watch(self) -> None:
        """Begin where the program has loaded asyncio; to be called again when it may have done so since.

        Raises:
            CannotInstrumentError: the event loop's callbacks are not those of a Python that is known.
        """
        events = getattr(sys.modules.get("asyncio"), "events", None)
        if events is not None and self._observation is None:
            observer = Observer(self._enter, self._leave, self._fail, absorbs=self._absorbs)
            self._observation = Observation(events.Handle._run, observer)

    def stop(self) -> None:
        """Stop looking."""
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
        self._changed(scopes.current_level(), None)  # of the loop itself

    def _fail(self, entered: bool) -> None:
        self._leave(entered, None)
