"""Lines of the operators that have created the nodes of autograd's graphs: those of what runs in backward.

Autograd calls an operator of backward from no line of the program but that of ``backward()``. A node and the operator
that has created it are matched by autograd's sequence number, which grows with every node that a thread creates.
"""

from __future__ import annotations

import threading
from itertools import islice
from types import FrameType
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.program_objects import class_name
from gpuledger.collect.attribution.stacks import StackTable, is_autograds_own

MOST_NODES = 100_000
"""Number of nodes whose lines are kept, the newest. Each takes about 100 bytes of host memory until the recording ends.
"""

_ACCUMULATOR = "AccumulateGrad"
_UNKNOWN = -1


class NodeLines:
    """Keeps the Python stack of the operator that has created a node, for the nodes of one thread.

    Numbers are those of a thread. If another thread creates nodes, too, nothing is known of any.

    Args:
        stacks: Assigns ids to Python stacks.
    """

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self._next_number = torch_private.sequence_reader()
        self._made: dict[int, int] = {}
        self._thread = threading.get_ident()
        self._newest = _UNKNOWN
        self._is_mixed = False
        self._before = _UNKNOWN
        """Stack of the node that has run last: gradients are accumulated on its line."""
        self.begin()

    def begin(self) -> None:
        """Leave out the nodes that were created until now, while operators were not seen."""
        if threading.get_ident() == self._thread:
            self._newest = self._next_number() - 1

    def stack_of(self, frame: FrameType | None) -> int:
        """Return the id of the stack of an operator: that of its node if autograd itself calls it; -1 for none.

        Args:
            frame: The innermost Python frame that the operator is called from.
        """
        found = self._of_node(torch_private.current_node()) if is_autograds_own(frame) else _UNKNOWN
        return self._stacks.intern_frame(frame) if found == _UNKNOWN else found

    def saw(self, frame: FrameType | None) -> None:
        """Remember the stack of an operator that was called from ``frame`` and has ended, if it has created a node."""
        number, thread = self._next_number() - 1, threading.get_ident()
        if number < 0 or self._is_mixed or (number == self._newest and thread == self._thread):
            return
        self._newest = number
        if thread != self._thread:
            self._thread, self._is_mixed = thread, bool(self._made)
            self._made.clear()
            return  # the newest node can be that of an earlier operator
        if len(self._made) >= MOST_NODES:
            for oldest in list(islice(self._made, MOST_NODES // 2)):
                del self._made[oldest]
        self._made[number] = self.stack_of(frame)

    def _of_node(self, node: Any) -> int:
        if class_name(type(node)) != _ACCUMULATOR:
            self._before = self._made.get(node._sequence_nr(), _UNKNOWN)
        return self._before
