"""Time of operators with the lines that call them, for CPU programs without steps: their whole run is one step.

The dispatch mode that records memory sees every operator, so no profiler is needed. An operator of backward has the
line of the operator that created its node.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.observer import Absorbs
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.memory.node_lines import NodeLines
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import LINE_RANGE, PHASE_RANGE, ActivityKind

MOST_OPERATORS = 100_000
"""Maximum number of operators. Each takes about 200 bytes of host memory until the program ends."""

_COLUMNS = ("kind", "device_idx", "lane", "name_id", "start_ns", "duration_ns")
_UNUSED = {"launch_id": 0, "sequence": -1, "forward_lane": 0, "inputs_id": -1}
_BACKWARD = f"{PHASE_RANGE}{int(Phase.BACKWARD)}"
_Row = tuple[int, int, Any, int, bool]


class OperatorTimes:
    """The operators of a program, in order.

    Args:
        lines: Finds the stack of an operator.
        absorbs: Handles an exception raised in gpuledger's code.
    """

    def __init__(self, lines: NodeLines, absorbs: Absorbs) -> None:
        self._lines = lines
        self._absorbs = absorbs
        self._is_on = True
        self._rows: list[_Row] = []

    @property
    def is_on(self) -> bool:
        """Return whether operators are timed."""
        return self._is_on and len(self._rows) < MOST_OPERATORS

    def add(self, operator: Any, start_ns: int, end_ns: int, frame: FrameType | None) -> None:
        """Add an operator that was called from ``frame``."""
        try:
            self._add(operator, start_ns, end_ns, frame)
        except RecursionError:
            pass
        except BaseException as error:
            if not self._absorbs(error):
                raise

    def drop(self) -> None:
        """Stop, and forget all times: the program has steps, which are measured in another way."""
        self._is_on = False
        self._rows.clear()

    def _add(self, operator: Any, start_ns: int, end_ns: int, frame: FrameType | None) -> None:
        stack_id, in_backward = self._lines.stack_of(frame), torch_private.current_node() is not None
        self._rows.append((start_ns, max(end_ns - start_ns, 1), operator, stack_id, in_backward))

    def write(self, journal: RankJournal) -> None:
        """Write the operators as activities of one step without a number."""
        names: dict[str, int] = {}
        rows = []
        for start_ns, duration_ns, operator, stack_id, in_backward in self._rows:
            ranges = [_BACKWARD] if in_backward else []
            inner = [f"{LINE_RANGE}{stack_id}"] if stack_id >= 0 else []
            nested = (*ranges, _name_of(operator), *inner)
            ids = [names.setdefault(name, len(names)) for name in nested]
            rows += [(int(ActivityKind.HOST), -1, 0, name_id, start_ns, duration_ns) for name_id in ids]
        if rows:
            journal.part.add("activities", **dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True)), **_UNUSED)
            is_whole = len(self._rows) < MOST_OPERATORS
            journal.fact(
                activity_names=list(names),
                operator_inputs=[],
                timed_program={"operators": len(self._rows), "is_whole": is_whole},
            )


def _name_of(operator: Any) -> str:
    """Return the name of an operator as the profiler has it."""
    return str(getattr(operator, "_schema", operator)).partition("(")[0].partition(".")[0]
