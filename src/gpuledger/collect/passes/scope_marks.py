"""Scopes in the time pass: a mark in Kineto's events wherever the scope at work on a thread changes.

A mark is a range that is closed as soon as it is opened. It has the thread and the clock of the operators around it,
and nothing of it stays open: scopes need not nest as ranges do (tasks and generators take turns on one thread), and one
that is left elsewhere, late or never leaves no range behind. What each operator belongs to is found out afterwards, see
:mod:`gpuledger.analyze.posting.lane_scopes`.
"""

from __future__ import annotations

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution import scopes
from gpuledger.collect.attribution.module_registry import SCOPES, ModuleRegistry
from gpuledger.collect.attribution.task_switches import TaskSwitches
from gpuledger.model.journal.journal import SCOPE_RANGE


class ScopeMarks:
    """Puts marks between :meth:`install` and :meth:`remove`.

    Args:
        registry: Numbers for names.
        guard: Takes what is raised in our code; there are no more marks after an error of ours.
    """

    def __init__(self, registry: ModuleRegistry, guard: Guard) -> None:
        self._registry = registry
        self._guard = guard
        self._open_range = torch_private.open_range
        self._texts: dict[tuple[str, ...], str] = {}
        self._tasks = TaskSwitches(self.changed, guard.absorbs)

    def install(self) -> None:
        """Begin, in the scope that the calling thread is in."""
        scopes.listen(self.changed)
        self._tasks.watch()
        level = scopes.current_level()
        if level.path:
            self.changed(level, None)

    def remove(self) -> None:
        """Leave nothing behind."""
        scopes.stop_listening(self.changed)
        self._tasks.stop()

    def changed(self, level: scopes.Level, scope: scopes.Scope | None) -> None:
        """A scope was entered; or one was left, or a task for another."""
        try:
            key = (level.path,) if scope is None else (level.path, scope.name if scope.append else "")
            with self._open_range(self._texts.get(key) or self._text(key)):
                pass
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise
            self.remove()

    def _text(self, key: tuple[str, ...]) -> str:
        """Return the name of a mark: the number of the path and, where one was entered, that of its name; -1: none."""
        self._tasks.is_wanted = True
        self._tasks.watch()
        numbers = [self._registry.name_id(text, SCOPES) if text else -1 for text in key]
        text = self._texts[key] = SCOPE_RANGE + ".".join(map(str, numbers))
        return text
