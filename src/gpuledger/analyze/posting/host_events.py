"""What host events say of each other: calls of modules in operators, and the operators that create autograd's nodes.

Kineto takes the sequence number of a node from the first event inside. If a hook of a tensor has run operators before
the node, that is one of these, which has none.

A step ends where an optimizer has stepped. Backward of the next step can begin with nodes that were created before, as
in a GAN: the discriminator steps, then the generator is updated through what it computed before. These nodes belong
with the operators that create their equivalents, one step later.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.journal.journal import NODE_EVENT, ActivityKind

FEWEST_NODES = 8
"""Fewest nodes of one backward that are compared with the operators of a step."""
ALIKE_FRAC = 0.9
"""Smallest share of these nodes that the operators create by their names."""
_MOST_VOTES = 64
"""Number of nodes, those with the rarest names, that find the difference of sequence numbers."""


class EarlierCalls:
    """Calls of modules that began before the profile, by the marks that their threads have left inside them.

    Args:
        table: The activities of the profile.
        is_mark: By name, whether an event is such a mark.
    """

    def __init__(self, table: dict[str, NDArray[Any]], is_mark: NDArray[np.bool_]) -> None:
        self._rows_count = table["kind"].size
        self._marks: dict[int, tuple[list[int], list[int]]] = {}
        rows = np.flatnonzero(is_mark[table["name_id"]] & (table["kind"] == ActivityKind.HOST))
        for row in rows[np.argsort(table["start_ns"][rows], kind="stable")].tolist():
            times_ns, names = self._marks.setdefault(int(table["lane"][row]), ([], []))
            times_ns.append(int(table["start_ns"][row]))
            names.append(int(table["name_id"][row]))

    def at(self, row: int, lane: int, begin_ns: int) -> int:
        """Return the name of the first mark of a thread after the begin of an event; -1 if there is none.

        Events after the profile's own are those of a capture, which was at another time.
        """
        times_ns, names = self._marks.get(lane, ([], []))
        place = bisect_left(times_ns, begin_ns)
        return names[place] if row < self._rows_count and place < len(names) else -1


def rows_around_calls(events: Iterable[tuple[int, int, int, int, int]], is_call: Sequence[bool]) -> set[int]:
    """Return the rows of host events with a call inside that has its own module or phase.

    A function of autograd around layers has calls of modules, and a node with a hook can have a step of an optimizer.

    Args:
        events: Row, begin, end, thread and name of each host event, by time; an event comes before what it contains.
        is_call: By name, whether an event is such a call.
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


def nodes_from_before(table: dict[str, NDArray[Any]], words: Sequence[str]) -> dict[tuple[int, int], int]:
    """Find the operators that create the same nodes as those from before the profile, one step earlier or later.

    Args:
        table: The activities.
        words: Their names, by ``name_id``.

    Returns:
        Thread and sequence number of a node that no operator here has created -> sequence number of the operator that
        creates its equivalent. Nothing if the operators of the step are others.
    """
    is_node = np.array([word.startswith(NODE_EVENT) for word in words], dtype=bool)[table["name_id"]]
    numbered = (table["kind"] == ActivityKind.HOST) & (table["sequence"] >= 0)
    is_maker = numbered & ~is_node & (table["forward_lane"] == 0)
    stems = [_stem(word) for word in words]
    found: dict[tuple[int, int], int] = {}
    for lane in np.unique(table["lane"][is_maker]).tolist():
        makers = is_maker & (table["lane"] == lane)
        nodes = numbered & is_node & (table["forward_lane"] == lane)
        nodes &= ~np.isin(table["sequence"], table["sequence"][makers])
        if np.count_nonzero(nodes) >= FEWEST_NODES:
            made: defaultdict[str, set[int]] = defaultdict(set)
            for name_id, sequence in _pairs(table, makers):
                made[stems[name_id]].add(sequence)
            waiting = {sequence: stems[name_id] for name_id, sequence in _pairs(table, nodes)}
            for group in _groups(sorted(waiting), np.unique(table["sequence"][makers])):
                later = _difference({sequence: waiting[sequence] for sequence in group}, made)
                found |= {(lane, sequence): sequence + later for sequence in group} if later else {}
    return found


def _pairs(table: dict[str, NDArray[Any]], chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the different pairs of name and sequence number of the chosen activities."""
    columns = (table["name_id"][chosen].tolist(), table["sequence"][chosen].tolist())
    return sorted(set(zip(*columns, strict=True)))


def _groups(nodes: Sequence[int], makers: NDArray[np.int64]) -> list[list[int]]:
    """Divide ascending sequence numbers of nodes where operators of the profile lie between two of them."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for node, place in zip(nodes, np.searchsorted(makers, nodes).tolist(), strict=True):
        groups[place].append(node)
    return [group for group in groups.values() if len(group) >= FEWEST_NODES]


def _difference(nodes: dict[int, str], made: dict[str, set[int]]) -> int:
    """Return by how much the sequence numbers of operators differ that create such nodes; 0 if there are none.

    Args:
        nodes: Sequence number -> name of a node.
        made: Name of an operator -> its sequence numbers.
    """
    rarest = sorted(nodes, key=lambda sequence: len(made.get(nodes[sequence], ())))
    voting = [sequence for sequence in rarest if made.get(nodes[sequence])][:_MOST_VOTES]
    if not voting:
        return 0
    each = [np.fromiter(made[nodes[sequence]], np.int64) - sequence for sequence in voting]
    differences, votes = np.unique(np.concatenate(each), return_counts=True)
    best = differences[votes == votes.max()]
    later = int(best[np.argmin(np.abs(best))])
    alike = sum(sequence + later in made.get(name, ()) for sequence, name in nodes.items())
    return later if alike >= ALIKE_FRAC * len(nodes) else 0


def _stem(word: str) -> str:
    """Return the name that an operator and the node that it creates have in common."""
    name = re.sub(r"Backward\d*$", "", word.removeprefix(NODE_EVENT)).rpartition("::")[2]
    return name.replace("_", "").lower()
