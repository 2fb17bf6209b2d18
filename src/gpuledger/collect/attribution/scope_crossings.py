"""Scope changes in backward, found once and matched again in later steps.

Finding them requires a walk of the whole graph, which takes longer than everything else that scopes do in a step. But
steps repeat. A backward pass matches an earlier one if both have the same roots and the same scope changes at the same
nodes, relative to their first node. If in addition every scope change is at a node with a module's hook, those hooks
set the scopes and no walk is needed. If one of these hooks then does not run, the graphs differed: passes with this key
are walked from then on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from gpuledger.collect.attribution.phases import ThreadState

CHANGES_KEPT = 1 << 16
"""Maximum number of scope changes and hooked nodes kept per thread.

The older half is dropped if backward never runs.
"""
CHANGES_COMPARED = 4096
"""Maximum number of scope changes in the key of a pass.

Bounds the key of a program that calls only ``autograd.grad`` and never ``backward()``.
"""
SHAPES_KEPT = 64
"""Maximum number of distinct backward passes kept. A training step has one or a few."""
NO_NUMBER = 1 << 62
"""Bound above all sequence numbers of ordinary nodes.

Gradient accumulators have the maximum number: they run as soon as possible, in the current scope.
"""

_Crossing = tuple[int, str]
"""Number of the first node that runs in a scope, and the scope's piece."""


def keep_changes(state: ThreadState) -> None:
    """Append the latest scope changes to the earlier ones.

    Of two changes with no node between them, the later one counts.
    """
    changes, starts, pieces = state.scope_changes, state.scope_starts, state.scope_pieces
    if starts and starts[-1] in changes:
        del starts[-1], pieces[-1]
    starts.extend(changes)
    pieces.extend(changes.values())
    changes.clear()
    if len(starts) > CHANGES_KEPT:
        del starts[: CHANGES_KEPT // 2], pieces[: CHANGES_KEPT // 2]


class Crossings:
    """Stores the scope changes of backward passes in which each one is at a node with a module's hook."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[_Crossing, ...]] = {}

    def remembered(self, state: ThreadState, roots: list[Any]) -> dict[int, str]:
        """Return the scope changes of a matching earlier pass as number -> piece; empty if the graph must be walked."""
        since = state.scope_since
        state.scope_shape = _shape(state, roots)
        found = {since + offset: piece for offset, piece in self._known.get(state.scope_shape, ())}
        if not state.scope_claimed.issuperset(found):
            return {}
        state.scope_awaited.update(found)
        return found

    def next_since(self, state: ThreadState, number: int, *, whole: bool) -> int:
        """Return the number from which the key of the next pass is built, after a pass that ended at ``number``."""
        since = state.scope_since
        count = len(state.scope_starts) - bisect_left(state.scope_starts, since)
        return number if whole or count > CHANGES_COMPARED else since

    def remember(self, state: ThreadState, crossings: dict[int, str], lowest: int) -> None:
        """Store the scope changes found by a walk that reached down to the node ``lowest``."""
        since = state.scope_since
        if state.scope_shape in self._known or lowest < since or not state.scope_claimed.issuperset(crossings):
            return
        if len(self._known) >= SHAPES_KEPT:
            self._known.clear()
        self._known[state.scope_shape] = tuple((number - since, piece) for number, piece in crossings.items())

    def forget(self, state: ThreadState) -> None:
        """Stop matching passes with this key, because an expected hook did not run."""
        self._known[state.scope_shape] = ()


def _shape(state: ThreadState, roots: list[Any]) -> tuple[Any, ...]:
    """Return the key by which a backward pass is matched. Its numbers are relative to the end of the pass before."""
    since = state.scope_since
    first = bisect_left(state.scope_starts, since)
    return (
        state.scope,
        state.scope_pieces[first - 1] if first else "",
        tuple(state.scope_pieces[first:]),
        tuple([number - since for number in state.scope_starts[first:]]),
        tuple([root._sequence_nr() - since for root in roots]),
    )


def crossings_among(nodes: Iterable[int], state: ThreadState) -> Iterator[_Crossing]:
    """Yield ``(number, piece)`` of each scope change among these nodes, in the order in which backward runs them."""
    starts, pieces = state.scope_starts, state.scope_pieces
    last, since = None, NO_NUMBER
    for number in sorted(nodes, reverse=True):
        if number >= since:  # in the same scope as the node before it
            continue
        place = bisect_right(starts, number) - 1
        piece, since = (pieces[place], starts[place]) if place >= 0 else ("", 0)
        piece = piece or state.scope
        if piece != last:
            last = piece
            yield number, piece


def numbered_nodes(roots: Iterable[Any], oldest: int) -> dict[int, Any]:
    """Return the nodes reachable from ``roots``, by number. Below ``oldest``, the search stops at the first node."""
    found: dict[int, Any] = {}
    waiting = list(roots)
    visit = waiting.append
    for node in waiting:  # the list grows during the iteration
        number = node._sequence_nr()
        if number >= NO_NUMBER or number in found:
            continue
        found[number] = node
        if number >= oldest:
            for following, _ in node.next_functions:
                if following is not None:
                    visit(following)
    return found
