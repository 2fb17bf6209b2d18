"""What is inside of host events: calls of modules in operators, and a node's own event in that of the engine.

Kineto takes the sequence number of a node from the first event inside. If a hook of a tensor has run operators before
the node, that is one of these, which has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.journal.journal import NODE_EVENT, ActivityKind


def rows_around_calls(events: Iterable[tuple[int, int, int, int, int]], is_call: Sequence[bool]) -> set[int]:
    """Return the rows of host events with a module's call inside, as a function of autograd around layers has.

    Args:
        events: Row, begin, end, thread and name of each host event, by time; an event comes before what it contains.
        is_call: By name, whether an event is a module's call.
    """
    around: set[int] = set()
    open_events: dict[int, list[tuple[int, int]]] = {}
    for row, begin_ns, end_ns, lane, name_id in events:
        stack = open_events.setdefault(lane, [])
        while stack and stack[-1][0] <= begin_ns:
            stack.pop()
        if is_call[name_id]:
            for _, outer in reversed(stack):
                if outer in around:
                    break
                around.add(outer)
        stack.append((end_ns, row))
    return around


def with_node_sequences(table: dict[str, NDArray[Any]], words: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return a table of activities in which each node has the sequence number and thread of its own event inside.

    Args:
        table: The activities.
        words: Their names, by ``name_id``.
    """
    numbers = {word: number for number, word in enumerate(words)}
    inner_of = np.array([numbers.get(word.removeprefix(NODE_EVENT), -1) for word in words], dtype=np.int64)
    is_node = np.array([word.startswith(NODE_EVENT) for word in words], dtype=bool)
    is_host = table["kind"] == ActivityKind.HOST
    name_id, has_number = table["name_id"].astype(np.int64), is_host & (table["sequence"] >= 0)
    lacks = np.flatnonzero(is_host & ~has_number & is_node[name_id] & np.isin(inner_of[name_id], name_id[has_number]))
    if not lacks.size:
        return table
    found = dict(table)
    columns = {name: table[name].copy() for name in ("sequence", "forward_lane")}
    end_ns = table["start_ns"] + table["duration_ns"]
    for row in lacks.tolist():
        inside = has_number & (name_id == inner_of[name_id[row]]) & (table["lane"] == table["lane"][row])
        inside &= (table["start_ns"] >= table["start_ns"][row]) & (end_ns <= end_ns[row])
        if inside.any():
            first = int(np.flatnonzero(inside)[np.argmin(table["start_ns"][inside])])
            for name, column in columns.items():
                column[row] = table[name][first]
    return found | columns
