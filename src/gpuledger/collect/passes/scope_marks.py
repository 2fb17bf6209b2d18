"""Scopes in profiled steps: a mark in Kineto's events wherever the current scope of a thread changes.

A mark is a range that is closed as soon as it is opened. It has the same thread and clock as the operators around it. A
range around the whole scope would not work: scopes need not nest (tasks and generators take turns on one thread), and
one that is left in another thread, late or never would leave its range open. The scope of each operator is computed
afterwards, see :mod:`gpuledger.analyze.posting.lane_scopes`.
"""

from __future__ import annotations

import threading

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution import scopes
from gpuledger.collect.attribution.module_registry import SCOPES, ModuleRegistry
from gpuledger.collect.attribution.task_switches import TaskSwitches
from gpuledger.model.journal.journal import SCOPE_RANGE


class ScopeMarks:
    """Writes marks between :meth:`install` and :meth:`remove`.

    Args:
        registry: Ids of names.
        guard: Handles exceptions raised in gpuledger's code. After an error of gpuledger, no more marks are written.
    """

    def __init__(self, registry: ModuleRegistry, guard: Guard) -> None:
        self._registry = registry
        self._guard = guard
        self._open_range = torch_private.open_range
        self._texts: dict[tuple[str, ...], str] = {}
        self._threads: set[int] = set()
        """Ids of the threads of which the scope is known."""
        self._tasks = TaskSwitches(self.changed, guard.absorbs)

    def install(self) -> None:
        """Start writing marks, from the calling thread's current scope."""
        self._threads.clear()
        scopes.listen(self.changed)
        self._tasks.is_wanted = scopes.were_entered()
        self._tasks.watch()
        self.see_thread()

    def see_thread(self) -> None:
        """Mark the calling thread's current scope if the thread has no mark yet. It can have entered it before."""
        thread = threading.get_ident()
        if thread not in self._threads:
            self._threads.add(thread)
            level = scopes.current_level()
            if level.path:
                self.changed(level, None)

    def remove(self) -> None:
        """Stop writing marks."""
        scopes.stop_listening(self.changed)
        self._tasks.stop()

    def changed(self, level: scopes.Level, scope: scopes.Scope | None) -> None:
        """Mark that a scope was entered or left, or that an event loop has switched tasks."""
        try:
            self._threads.add(threading.get_ident())
            key = (level.path,) if scope is None else (level.path, scope.name if scope.append else "")
            with self._open_range(self._texts.get(key) or self._text(key)):
                pass
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise
            self.remove()

    def _text(self, key: tuple[str, ...]) -> str:
        """Return the text of a mark: id of the scope's path, and id of the name if one was entered; -1 for none."""
        self._tasks.is_wanted = True
        self._tasks.watch()
        numbers = [self._registry.name_id(text, SCOPES) if text else -1 for text in key]
        text = self._texts[key] = SCOPE_RANGE + ".".join(map(str, numbers))
        return text
