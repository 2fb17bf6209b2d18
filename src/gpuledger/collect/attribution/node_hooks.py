"""Hooks on the nodes of autograd's graphs, and the search for a node to hook.

Compiled autograd compiles the hooks of a graph together with its nodes, so gpuledger's are removed before it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_private

_KEPT = 100_000
"""Number of handles that are kept. A graph whose backward never runs would keep them forever."""

_FIRST_NODE_SEARCH, _FIRST_NODE_SEARCH_OUTERMOST = 64, 2_048
"""Maximum number of nodes searched for a module's first node, inside another module and outside. Beyond that, the
parent's nodes count as the module's."""


class NodeHooks:
    """The hooks that one thread has registered since its last backward pass."""

    __slots__ = ("_handles",)

    def __init__(self) -> None:
        self._handles: deque[Any] = deque(maxlen=_KEPT)

    def add_before(self, node: Any, hook: Callable[[Any], None]) -> None:
        """Call ``hook`` before a node runs."""
        self._handles.append(torch_private.register_hook(node.register_prehook, hook))

    def add_after(self, node: Any, hook: Callable[[Any, Any], None]) -> None:
        """Call ``hook`` after a node has run."""
        self._handles.append(torch_private.register_hook(node.register_hook, hook))

    def forget(self) -> None:
        """Forget the hooks of a graph that has run."""
        self._handles.clear()

    def remove(self) -> None:
        """Remove all hooks."""
        while self._handles:
            self._handles.pop().remove()


def first_node(node: Any, start: int, end: int, *, outermost: bool) -> Any:
    """Return the node with the lowest sequence number from ``start`` up to ``end`` that is reachable from ``node``.

    None if the search reached its limit. Gradient accumulators have the maximum sequence number, so they are skipped.
    """
    best, best_number = None, end
    seen: set[int] = set()
    waiting = [node]
    most = _FIRST_NODE_SEARCH_OUTERMOST if outermost else _FIRST_NODE_SEARCH
    while waiting and len(seen) < most:
        current = waiting.pop()
        number = current._sequence_nr()
        if not start <= number < end or number in seen:
            continue
        if number == start:
            return current
        seen.add(number)
        if number < best_number:
            best, best_number = current, number
        waiting += [following for following, _ in current.next_functions if following is not None]
    return best if not waiting else None
