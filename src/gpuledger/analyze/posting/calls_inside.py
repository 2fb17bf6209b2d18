"""Operators that call modules: an ``autograd.Function`` around layers, or a node that computes a forward again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def rows_around_calls(events: Iterable[tuple[int, int, int, int, int]], is_call: Sequence[bool]) -> set[int]:
    """Return the rows of host events with a module's call inside.

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
