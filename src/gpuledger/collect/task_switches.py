"""Where an event loop goes from one task to another, the scope changes without being entered or left."""

from __future__ import annotations

import functools
import sys
from contextvars import Context
from typing import Any

from gpuledger.collect import scopes


class TaskSwitches:
    """Tells of the scope that each callback of an event loop runs in. Of loops that run their callbacks in Python.

    Args:
        changed: Told of the scope of a callback before it, and of the loop's own after it. Must not raise.
    """

    def __init__(self, changed: scopes.Listener) -> None:
        self.is_wanted = False
        """Whether there are scopes to tell of; until then a callback costs one look at this."""
        self._changed = changed
        self._replaced: tuple[Any, Any] | None = None

    def watch(self) -> None:
        """Begin where the program has loaded asyncio; to be called again when it may have done so since."""
        events = getattr(sys.modules.get("asyncio"), "events", None)
        if events is None or self._replaced is not None:
            return
        theirs = events.Handle._run
        switches, changed = self, self._changed

        @functools.wraps(theirs)
        def _run(self: Any) -> Any:
            if not switches.is_wanted:
                return theirs(self)
            context: Context = self._context
            changed(scopes.current_level(context), None)
            try:
                return theirs(self)
            finally:
                changed(scopes.current_level(), None)  # of the loop itself

        self._replaced = (_run, theirs)
        events.Handle._run = _run

    def stop(self) -> None:
        """Put the loop's own function back, unless somebody has replaced ours."""
        self.is_wanted = False
        if self._replaced is not None:
            ours, theirs = self._replaced
            handle = sys.modules["asyncio"].events.Handle
            if handle._run is ours:
                handle._run = theirs
            self._replaced = None
