"""Track the current scope of each thread through the events of the profiled steps, by the same rules as for memory.

In forward, marks give the scope. In backward, a graph node has the scope of the operator that created it, or else the
scope in which ``backward()`` was called. Gradient accumulation has the scope of the node before it. Recomputed
operators have the scopes of their original forward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.model.journal.journal import SCOPE_RANGE

NONE = -1
"""Scope id outside all scopes."""
_SEPARATOR = "/"


class Mark(NamedTuple):
    """A scope change to ``path``. ``name`` is the appended name if a scope was entered, None if one was left."""

    path: int
    name: int | None


def read_mark(word: str) -> Mark | None:
    """Return the mark that an activity's name encodes; None for any other name."""
    if not word.startswith(SCOPE_RANGE):
        return None
    path, dot, name = word.removeprefix(SCOPE_RANGE).partition(".")
    return Mark(int(path), int(name) if dot else None)


@dataclass
class _Lane:
    """State of one thread: current scope, scopes to restore in backward, and the scope before each running node."""

    scope: int = NONE
    before: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int]] = field(default_factory=list)
    last: int | None = None


class LaneScopes:
    """Tracks scopes. Call its methods for the events of all threads in order of time. Scopes are ids of their paths.

    Args:
        texts: Id -> path or name of a scope.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._lanes: defaultdict[int, _Lane] = defaultdict(_Lane)
        self._calls: list[tuple[int, int, int]] = []
        self._known: dict[str, int] = {}

    def at_work(self, lane: int) -> int:
        """Return the current scope of a thread."""
        return self._lanes[lane].scope

    def computes_again(self, lane: int) -> bool:
        """Return whether a thread is inside a scope that was entered in backward."""
        return bool(self._lanes[lane].before)

    def mark(self, lane: int, mark: Mark, *, in_backward: bool) -> None:
        """Process a mark."""
        at = self._lanes[lane]
        if mark.name is None:
            at.scope = at.before.pop() if in_backward and at.before else mark.path
            return
        path = mark.path
        if in_backward:
            at.before.append(at.scope)
            if mark.name != NONE and at.scope != NONE:
                path = self._again(self._texts[at.scope], self._texts[mark.name], path)
        at.scope = path
        self._known.setdefault(self._texts[path], path)

    def _again(self, at_work: str, name: str, path: int) -> int:
        """Return the scope that ``name`` was in the original forward: it is one of the scopes around the node."""
        pieces = at_work.split(_SEPARATOR)
        candidates = (_SEPARATOR.join((*pieces[:count], name)) for count in range(len(pieces), -1, -1))
        return next((self._known[one] for one in candidates if one in self._known), path)

    def backward_begins(self, lane: int, end_ns: int) -> None:
        """Record that a thread called ``backward()``, which ends at ``end_ns``."""
        self._calls.append((end_ns, lane, self._lanes[lane].scope))

    def node_begins(self, lane: int, begin_ns: int, made_in: int | None) -> None:
        """Record that a thread runs a node created in the scope ``made_in`` (NONE: outside); None without a number."""
        at = self._lanes[lane]
        at.nodes.append((at.scope, len(at.before)))
        if made_in is not None:
            at.last = made_in if made_in != NONE else self._caller(lane, begin_ns)
        elif at.last is None:
            at.last = self._caller(lane, begin_ns)
        at.scope = at.last

    def node_ends(self, lane: int) -> None:
        """Record that a thread has finished a node."""
        at = self._lanes[lane]
        at.scope, depth = at.nodes.pop()
        del at.before[depth:]

    def _caller(self, lane: int, now_ns: int) -> int:
        """Return the scope in which the current backward pass was called: on this thread, or else last on another."""
        self._calls = [call for call in self._calls if call[0] > now_ns]
        mine = [scope for _, caller, scope in self._calls if caller == lane]
        return (mine or [scope for _, _, scope in self._calls] or [NONE])[-1]
