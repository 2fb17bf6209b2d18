"""Track the current scope of each thread through the events of the profiled steps, by the same rules as for memory.

In forward, marks give the scope. In backward, a graph node has the scope of the operator that created it, or else the
scope in which ``backward()`` was called. Gradient accumulation has the scope of the node before it. Recomputed
operators have the scopes of their original forward.

Also reads what the names of the profiled activities mean, of which some are such marks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.launch_lines import read_line
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import (
    EARLIER_CALL,
    FUSION_RANGE,
    GRAPH_RANGE,
    LINE_RANGE,
    MODULE_RANGE,
    NO_GRAD,
    NODE_EVENT,
    PHASE_RANGE,
    SCOPE_RANGE,
)

NONE = -1
"""Scope id outside all scopes."""
_SEPARATOR = "/"

_OURS = (MODULE_RANGE, PHASE_RANGE, LINE_RANGE, GRAPH_RANGE, EARLIER_CALL)
"""Prefixes of the names of ranges and marks of gpuledger's. No operator has one of these."""

_COMPILER = " (dynamo_timed)"
"""Ends the name of an event that torch.compile opens inside its others. Their names are not those of operators."""


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


@dataclass(frozen=True)
class EventNames:
    """Meaning of each activity name. ``is_ours`` is True for names that are not operators.

    ``of_call`` is the phase of a model called under this name. ``earlier`` is the module of a mark of a call from
    before the profile; -1 for any other name.
    """

    module: list[int]
    earlier: list[int]
    of_call: list[Phase]
    phase: list[int]
    is_node: list[bool]
    mark: list[Mark | None]
    fusion: list[int]
    is_line: list[bool]
    is_compiler: list[bool]
    is_operator: list[bool]
    is_ours: NDArray[np.bool_]


def read_names(words: Sequence[str]) -> EventNames:
    """Return the meaning of activity names."""
    return EventNames(
        module=[_module_of(word, MODULE_RANGE) for word in words],
        earlier=[_module_of(word, EARLIER_CALL) for word in words],
        of_call=[Phase.EVALUATION if word.endswith(NO_GRAD) else Phase.FORWARD for word in words],
        phase=[int(word.removeprefix(PHASE_RANGE)) if word.startswith(PHASE_RANGE) else -1 for word in words],
        is_node=[word.startswith(NODE_EVENT) for word in words],
        mark=[read_mark(word) for word in words],
        fusion=[_fusion_of(word) for word in words],
        is_line=[read_line(word) >= 0 or word.startswith((GRAPH_RANGE, EARLIER_CALL)) for word in words],
        is_compiler=[word.endswith(_COMPILER) for word in words],
        is_operator=["::" in word or word.startswith((*_OURS, NODE_EVENT, FUSION_RANGE)) for word in words],
        is_ours=np.array([word.startswith(_OURS) for word in words], dtype=bool),
    )


def _fusion_of(word: str) -> int:
    number = word.removeprefix(FUSION_RANGE)
    return int(number) if number != word and number.isdecimal() else -1


def _module_of(word: str, prefix: str) -> int:
    return int(word.removeprefix(prefix).removesuffix(NO_GRAD)) if word.startswith(prefix) else -1
