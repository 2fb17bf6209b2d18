"""Which scope is at work on each thread of the time pass, event after event, by the rules that bytes go by.

In forward the marks say so. A node of the graph goes to the scope of the operator that made it, or else to the scope
that ``backward()`` was called in; a gradient's accumulation to that of the node before it. What a node computes again
is in the scopes that its forward was in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuledger.model.journal.journal import SCOPE_RANGE

NONE = -1
"""Stands for outside every scope, in the numbers of scopes."""
_SEPARATOR = "/"


class Mark(NamedTuple):
    """A change of scope: to ``path``; ``name`` is what was appended when one was entered, None where one was left."""

    path: int
    name: int | None


def read_mark(word: str) -> Mark | None:
    """Return the mark that an activity's name stands for; None for any other name."""
    if not word.startswith(SCOPE_RANGE):
        return None
    path, dot, name = word.removeprefix(SCOPE_RANGE).partition(".")
    return Mark(int(path), int(name) if dot else None)


@dataclass
class _Lane:
    """One thread: the scope at work, what to go back to in backward, and what held before each node under way."""

    scope: int = NONE
    before: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int]] = field(default_factory=list)
    last: int | None = None


class LaneScopes:
    """Told of the events of all threads in order of time; scopes go by the numbers of their paths.

    Args:
        texts: Paths and names of scopes by number.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._lanes: defaultdict[int, _Lane] = defaultdict(_Lane)
        self._calls: list[tuple[int, int, int]] = []
        self._known: dict[str, int] = {}

    def at_work(self, lane: int) -> int:
        """Return the scope that a thread works for now."""
        return self._lanes[lane].scope

    def computes_again(self, lane: int) -> bool:
        """Return whether a thread is inside a scope that was entered in backward."""
        return bool(self._lanes[lane].before)

    def mark(self, lane: int, mark: Mark, *, in_backward: bool) -> None:
        """A mark was met."""
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
        """Return the scope that ``name`` was when it was entered in forward: it stood somewhere around the node."""
        pieces = at_work.split(_SEPARATOR)
        candidates = (_SEPARATOR.join((*pieces[:count], name)) for count in range(len(pieces), -1, -1))
        return next((self._known[one] for one in candidates if one in self._known), path)

    def backward_begins(self, lane: int, end_ns: int) -> None:
        """``backward()`` was called by a thread; it ends at ``end_ns``."""
        self._calls.append((end_ns, lane, self._lanes[lane].scope))

    def node_begins(self, lane: int, begin_ns: int, made_in: int | None) -> None:
        """A thread evaluates a node, made in a scope (NONE: outside them all); None where it has no number."""
        at = self._lanes[lane]
        at.nodes.append((at.scope, len(at.before)))
        if made_in is not None:
            at.last = made_in if made_in != NONE else self._caller(lane, begin_ns)
        elif at.last is None:
            at.last = self._caller(lane, begin_ns)
        at.scope = at.last

    def node_ends(self, lane: int) -> None:
        """A thread has evaluated a node."""
        at = self._lanes[lane]
        at.scope, depth = at.nodes.pop()
        del at.before[depth:]

    def _caller(self, lane: int, now_ns: int) -> int:
        """Return the scope that the backward pass under way was called in: on this thread, or last on any."""
        self._calls = [call for call in self._calls if call[0] > now_ns]
        mine = [scope for _, caller, scope in self._calls if caller == lane]
        return (mine or [scope for _, _, scope in self._calls] or [NONE])[-1]
