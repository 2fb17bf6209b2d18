"""Place profiled work on source lines: each host event gets the Python stack of the call that it belongs to.

In one step after the measured ones, each operator that Python calls has a range with the id of its stack. So has each
call of PyTorch's own modules, around its operators. This step is the pattern: a measured step that calls the same
operators in the same order has the same lines. An operator of backward, and one without gradients, is not the same as
one of forward: the step can have an evaluation of the same model in it. That autograd follows an operator is known from
its sequence number, because modules have no ranges in this step. Operators of backward without Python code of their
own have the line of the forward operator that created their node, or else the line that started backward. An operator
without an equivalent in the pattern has no line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.host_events import nodes_from_before
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import (
    EARLIER_CALL,
    FUSION_RANGE,
    GRAPH_RANGE,
    LINE_RANGE,
    MODULE_RANGE,
    NODE_EVENT,
    PHASE_RANGE,
    SCOPE_RANGE,
    ActivityKind,
)

I64 = NDArray[np.int64]

NONE = -1
PATTERN = -2
"""Stands for the step with lines, as the number of a step."""

_RANGES = (MODULE_RANGE, PHASE_RANGE, FUSION_RANGE, LINE_RANGE, GRAPH_RANGE)
_OURS = (*_RANGES, SCOPE_RANGE, EARLIER_CALL, "PythonDispatchMode")
"""Events that are no operators. torch records the last one around each call of a dispatch mode."""
_BACKWARD = f"{PHASE_RANGE}{int(Phase.BACKWARD)}"
_MOST_PAIRS = 4_000_000
"""Maximum size of two lists of operators, multiplied, that are compared if they differ. It takes about a second."""
_FIRST_OPERATORS = 16
"""Number of operators that are compared before all are."""


def read_line(word: str) -> int:
    """Return the stack id in the name of a range; -1 for any other name."""
    number = word.removeprefix(LINE_RANGE)
    return int(number) if number != word and number.isdecimal() else NONE


def place_lines(
    table: dict[str, NDArray[Any]],
    words: Sequence[str],
    parent: I64,
    in_backward: NDArray[np.bool_],
    step: I64,
    pattern_ns: int | None,
) -> tuple[I64, set[int]]:
    """Return the stack id of each activity on the host; -1 if its line is unknown, and for device events.

    With them, the rows of the nodes of backward with Python code inside that has lines of its own.

    Args:
        table: The journal's activities.
        words: Names of activities.
        parent: Row of the enclosing host event of each activity; -1 if there is none.
        in_backward: Whether each activity belongs to a backward pass.
        step: Step of each activity.
        pattern_ns: Start of the step with lines, in Unix ns; None if there is none.
    """
    lines = np.array([read_line(word) for word in words], dtype=np.int64)
    if not (lines >= 0).any():
        return np.full(table["kind"].size, NONE, dtype=np.int64), set()
    in_pattern = np.zeros(step.size, dtype=bool) if pattern_ns is None else table["start_ns"] >= pattern_ns
    calls = _Calls(table, words, parent, in_backward, np.where(in_pattern, PATTERN, step))
    calls.compare()
    return calls.lines(nodes_from_before(table, words)), calls.divided


class _Calls:
    """The operators of each thread and step as trees, by their rows among the activities."""

    def __init__(
        self,
        table: dict[str, NDArray[Any]],
        words: Sequence[str],
        parent: I64,
        in_backward: NDArray[np.bool_],
        step: I64,
    ) -> None:
        host = np.flatnonzero(table["kind"] == ActivityKind.HOST)
        end_ns = table["start_ns"] + table["duration_ns"]
        self._order: list[int] = host[np.lexsort((-end_ns[host], table["start_ns"][host]))].tolist()
        self._start_ns, self._end_ns = table["start_ns"].tolist(), end_ns.tolist()
        self._lane, self._name = table["lane"].tolist(), table["name_id"].tolist()
        self._kind = (table["name_id"] * 4 + in_backward * 2 + (table["sequence"] >= 0)).tolist()
        self._sequence, self._made_by = table["sequence"].tolist(), table["forward_lane"].tolist()
        self._parent, self._step, self._words = parent.tolist(), step.tolist(), words
        count = table["kind"].size
        self._operator_above = [NONE] * count
        self._range_above = [NONE] * count
        self._first = [NONE] * count
        """The first line inside each event."""
        self._mixed = [False] * count
        """Whether events inside each have several lines, or are called by Python code in a node of backward."""
        self._runs_node = [False] * count
        """Whether each event is a node of backward, or the function of one inside it."""
        self.divided: set[int] = set()
        """Events of measured steps in which a node of backward calls Python code that runs operators."""
        self._found = [NONE] * count
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        self._roots: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._backwards: defaultdict[int, list[int]] = defaultdict(list)
        self._is_operator = [not word.startswith(_OURS) for word in words]
        self._is_node = [word.startswith(NODE_EVENT) for word in words]
        self._line_of = [read_line(word) for word in words]
        for row in self._order:
            self._add(row)

    def _add(self, row: int) -> None:
        above, name = self._parent[row], self._name[row]
        self._runs_node[row] = self._is_node[name] or (
            above >= 0 and self._words[self._name[above]] == f"{NODE_EVENT}{self._words[name]}"
        )
        if above >= 0:
            is_operator = self._is_operator[self._name[above]]
            self._operator_above[row] = above if is_operator else self._operator_above[above]
            line = self._line_of[self._name[above]]
            self._range_above[row] = line if line >= 0 else self._range_above[above]
        if self._line_of[name] >= 0:
            self._add_line(row, self._line_of[name])
        elif self._words[name] == _BACKWARD:
            self._backwards[self._step[row]].append(row)
        elif self._is_operator[name] and self._is_called_by_node(row):
            self._add_operator(row)
            self._divide(self._operator_above[row])
        elif self._is_operator[name] and (self._range_above[row] < 0 or self._operator_above[row] < 0):
            self._add_operator(row)

    def _add_operator(self, row: int) -> None:
        outer = self._operator_above[row]
        self._first[row] = self._range_above[row]  # of a range around a call of a module or of a function, or none
        siblings = self._roots[self._lane[row], self._step[row]] if outer < 0 else self._children[outer]
        siblings.append(row)

    def _is_called_by_node(self, row: int) -> bool:
        """Return whether Python code that a node of backward calls has called an operator: a hook, or a function."""
        above, outer = self._parent[row], self._operator_above[row]
        return outer >= 0 and self._runs_node[outer] and self._line_of[self._name[above]] >= 0

    def _add_line(self, row: int, line: int) -> None:
        above = self._parent[row]
        if above >= 0 and self._words[self._name[above]] == _BACKWARD:
            self._first[above] = line
        inner = above = self._operator_above[row]
        while above >= 0 and not self._runs_node[above]:  # a node has its own line
            if self._first[above] < 0:
                self._first[above] = line
            elif self._first[above] != line:
                self._mixed[above] = True
            above = self._operator_above[above]
        if above != inner:
            self._divide(above)

    def _divide(self, row: int) -> None:
        """Note that Python code which a node has called runs operators."""
        while row >= 0:
            self._mixed[row] = True
            row = self._operator_above[row]

    def compare(self) -> None:
        """Give the operators of measured steps the lines of their equivalents in the pattern."""
        for (lane, step), rows in list(self._roots.items()):
            if step != PATTERN:
                self._compare(rows, self._turned(rows, self._roots.get((lane, PATTERN), [])))
        for step, rows in self._backwards.items():
            if step != PATTERN and len(rows) == len(self._backwards.get(PATTERN, ())):
                for row, like in zip(rows, self._backwards[PATTERN], strict=True):
                    self._found[row] = self._first[like]

    def _turned(self, rows: list[int], likes: list[int]) -> list[int]:
        """Return the pattern from where a step begins: one that ends inside backward begins in the middle of it."""
        names, others = ([self._kind[row] for row in some] for some in (rows, likes))
        if len(names) != len(others) or sorted(names) != sorted(others):
            return likes
        some, twice = names[:_FIRST_OPERATORS], others + others
        for place in range(len(others)):
            if twice[place : place + len(some)] == some and twice[place : place + len(names)] == names:
                return likes[place:] + likes[:place]
        return likes

    def _compare(self, rows: list[int], likes: list[int]) -> None:
        kinds = [[self._kind[row] for row in some] for some in (rows, likes)]
        for place, like_place in _alike(*kinds):
            row, like = rows[place], likes[like_place]
            if self._mixed[like]:
                if self._runs_node[like]:
                    self.divided.add(row)
                self._compare(self._children[row], self._children[like])
            if self._found[row] < 0:
                self._found[row] = self._first[like]

    def lines(self, before: dict[tuple[int, int], int]) -> I64:
        """Return the stack id of each row.

        Args:
            before: Nodes from before the profile, and the operators like those that created them.
        """
        compared, makers = list(self._found), dict[tuple[int, int], int]()
        self._walk(makers, self._found)
        if before:
            known, self._found = self._found, compared
            like = {(lane, node): makers.get((lane, later)) for (lane, node), later in before.items()}
            self._walk({node: row for node, row in like.items() if row is not None}, known)
        return np.array(self._found, dtype=np.int64)

    def _walk(self, makers: dict[tuple[int, int], int], known: list[int]) -> None:
        """Give each row a line, in order of time.

        Args:
            makers: Gets the row of the operator with each thread and sequence number. What it has already are rows that
                come later.
            known: Lines of these.
        """
        found = self._found
        last_node: dict[int, int] = {}
        backward = NONE
        for row in self._order:
            name, lane, above = self._name[row], self._lane[row], self._parent[row]
            is_node = self._is_node[name]
            if self._words[name] == _BACKWARD:
                backward = row
            if found[row] < 0:
                found[row] = self._range_above[row] if self._range_above[row] >= 0 else self._first[row]
            if found[row] < 0 and is_node:
                found[row] = self._line_of_node(row, makers, last_node, known)
            if found[row] < 0 and above >= 0:
                found[row] = found[above]
            if found[row] < 0 and is_node and backward >= 0 and self._start_ns[row] < self._end_ns[backward]:
                found[row] = found[backward]
            if is_node:
                last_node[lane] = row
            elif self._sequence[row] >= 0 and not self._made_by[row]:
                makers[lane, self._sequence[row]] = makers[0, self._sequence[row]] = row

    def _line_of_node(
        self, row: int, makers: dict[tuple[int, int], int], last_node: dict[int, int], known: list[int]
    ) -> int:
        """Return the line of the operator that created a node; without a sequence number, of the node before."""
        if self._sequence[row] < 0:
            before = last_node.get(self._lane[row])
            return NONE if before is None else self._found[before]
        maker = makers.get((self._made_by[row], self._sequence[row]), makers.get((0, self._sequence[row])))
        if maker is None:
            return NONE
        return self._found[maker] if self._found[maker] >= 0 else known[maker]


def _alike(names: list[int], likes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the positions of equal names in both lists, in order; those of differences are left out."""
    if names == likes:
        yield from zip(range(len(names)), range(len(likes)), strict=True)
        return
    most = min(len(names), len(likes))
    first = next((place for place in range(most) if names[place] != likes[place]), most)
    last = next((place for place in range(most - first) if names[-1 - place] != likes[-1 - place]), most - first)
    yield from ((place, place) for place in range(first))
    middle, other = names[first : len(names) - last], likes[first : len(likes) - last]
    if len(middle) * len(other) <= _MOST_PAIRS:
        for block in SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks():
            yield from ((first + block.a + one, first + block.b + one) for one in range(block.size))
    yield from ((len(names) - 1 - place, len(likes) - 1 - place) for place in range(last))
