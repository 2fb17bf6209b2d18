"""Time of operators with the lines that call them, while memory is recorded.

The dispatch mode that records memory sees every operator, so no profiler is needed. An operator of backward has the
line of the operator that created its node. A CPU program without steps is one step. A program with steps has these
times if it ends before a step could be profiled.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.observer import Absorbs
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.memory.node_lines import NodeLines
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import LINE_RANGE, PHASE_RANGE, ActivityKind
from gpuledger.model.pass_facts import TIME_STEPS

MOST_OPERATORS = 100_000
"""Maximum number of operators. Each takes about 200 bytes of host memory until the program ends."""

_COLUMNS = ("kind", "device_idx", "lane", "name_id", "start_ns", "duration_ns")
_UNUSED = {"launch_id": 0, "sequence": -1, "forward_lane": 0, "inputs_id": -1}
_BACKWARD = f"{PHASE_RANGE}{int(Phase.BACKWARD)}"
_Row = tuple[int, int, Any, int, bool, str, int]
"""Start and duration in ns, operator, stack, whether it is of backward, token, and thread."""


class OperatorTimes:
    """The operators of a program without steps, or those of the last recorded steps.

    Args:
        lines: Finds the stack of an operator.
        token: Returns the token of the calling thread.
        absorbs: Handles an exception raised in gpuledger's code.
    """

    def __init__(self, lines: NodeLines, token: Callable[[], str], absorbs: Absorbs) -> None:
        self._lines, self._token, self._absorbs = lines, token, absorbs
        self._rows: list[_Row] = []
        self._has_steps = False
        self._started_ns = time.time_ns()
        self._earlier: deque[tuple[int, list[_Row]]] = deque(maxlen=TIME_STEPS)
        """Start in ns and operators of the steps before the current one, the newest."""

    @property
    def is_on(self) -> bool:
        """Return whether operators are timed."""
        return len(self._rows) < MOST_OPERATORS

    def add(self, operator: Any, start_ns: int, end_ns: int, frame: FrameType | None) -> None:
        """Add an operator that was called from ``frame``, if operators are timed."""
        try:
            if self.is_on:
                self._add(operator, start_ns, end_ns, frame)
        except RecursionError:
            pass
        except BaseException as error:
            if not self._absorbs(error):
                raise

    def expect_steps(self) -> None:
        """Record that the program has steps, or what can be one."""
        self._has_steps = True

    def step_ended(self, *, is_whole: bool) -> None:
        """Record the end of a step. The operators of the newest steps are kept, if all of them were timed.

        Args:
            is_whole: Whether all operators of the step were recorded.
        """
        was_whole = is_whole and self.is_on
        rows, self._rows = self._rows, []
        started_ns, self._started_ns = self._started_ns, time.time_ns()
        if not was_whole:
            self._earlier.clear()
            return
        self._earlier.append((started_ns, rows))
        count = 0
        for _, one in self._earlier:  # no generator: a signal handler of the program can raise here
            count += len(one)
        while count > MOST_OPERATORS:
            count -= len(self._earlier.popleft()[1])

    def _add(self, operator: Any, start_ns: int, end_ns: int, frame: FrameType | None) -> None:
        stack_id, in_backward = self._lines.stack_of(frame), torch_private.current_node() is not None
        owner = self._token(), threading.get_ident()
        self._rows.append((start_ns, max(end_ns - start_ns, 1), operator, stack_id, in_backward, *owner))

    def write(self, journal: RankJournal, tags: TagTable) -> None:
        """Write the operators, once: those of the newest steps, or of a program without steps as one without a number.

        Args:
            journal: Where they are written.
            tags: Ids of tokens.
        """
        if self._has_steps:
            self._write_steps(journal, tags)
        else:
            self._write_program(journal)
        self._rows = []
        self._earlier.clear()

    def _write_program(self, journal: RankJournal) -> None:
        names: dict[str, int] = {}
        rows = []
        for start_ns, duration_ns, operator, stack_id, in_backward, *_ in self._rows:
            ranges = [_BACKWARD] if in_backward else []
            inner = [f"{LINE_RANGE}{stack_id}"] if stack_id >= 0 else []
            nested = (*ranges, _name_of(operator), *inner)
            ids = [names.setdefault(name, len(names)) for name in nested]
            rows += [(int(ActivityKind.HOST), -1, 0, name_id, start_ns, duration_ns) for name_id in ids]
        if rows:
            journal.part.add("activities", **dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True)), **_UNUSED)
            is_whole = self.is_on
            journal.fact(
                activity_names=list(names),
                operator_inputs=[],
                timed_program={"operators": len(self._rows), "is_whole": is_whole},
            )

    def _write_steps(self, journal: RankJournal, tags: TagTable) -> None:
        steps = [*self._earlier, *([(self._started_ns, self._rows)] if self.is_on else [])]
        names: dict[Any, int] = {}
        lanes: dict[int, int] = {}
        tag_ids: dict[str, int] = {}
        rows = []
        for _, operators in steps:
            for start_ns, duration_ns, operator, stack_id, _, token, thread in operators:
                if token not in tag_ids:
                    tag_ids[token] = tags.number(token)
                name_id, lane = names.setdefault(operator, len(names)), lanes.setdefault(thread, len(lanes))
                rows.append((lane, name_id, tag_ids[token], stack_id, start_ns, duration_ns))
        if rows:
            columns = ("lane", "name_id", "tag_id", "stack_id", "start_ns", "duration_ns")
            journal.part.add("operators", **dict(zip(columns, zip(*rows, strict=True), strict=True)))
            until_ns = time.time_ns() if self.is_on else self._started_ns
            journal.fact(timed_operators={"names": list(map(_name_of, names)), "range_ns": [steps[0][0], until_ns]})


def _name_of(operator: Any) -> str:
    """Return the name of an operator as the profiler has it."""
    return str(getattr(operator, "_schema", operator)).partition("(")[0].partition(".")[0]
