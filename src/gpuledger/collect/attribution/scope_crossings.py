"""Where backward goes from one scope to another, known again from step to step.

To find it the whole graph has to be walked, which takes longer than all of a step's scopes together. Steps repeat
themselves: where a backward pass looks as one that was walked did (the same changes of scope at the same nodes, the
same roots), and a module's hook is at every crossing then and now, the hooks are told their scopes without a walk. One
that then does not run shows that the graph was another: passes that look so are walked from then on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

from gpuledger.collect.attribution.phases import ThreadState

CHANGES_KEPT = 1 << 16
"""Changes of scope and hooked nodes remembered per thread: the older half goes where nobody runs backward."""
CHANGES_COMPARED = 4096
"""Changes of scope that a pass is known again by, at the most where there is no end to them: a program that never calls
``backward()``, but ``autograd.grad`` alone."""
SHAPES_KEPT = 64
"""Backward passes that are told apart; of those there are one or a few in a training step."""
_NO_NUMBER = 1 << 62
"""Gradient accumulators have the highest number there is: they run as soon as they can, in the scope at work."""

_Crossing = tuple[int, str]
"""Number of the first node that runs in a scope, and the scope's piece."""


def keep_changes(state: ThreadState) -> None:
    """Put the latest changes of scope behind those before them; of two without a node between them the later counts."""
    changes, starts, pieces = state.scope_changes, state.scope_starts, state.scope_pieces
    if starts and starts[-1] in changes:
        del starts[-1], pieces[-1]
    starts.extend(changes)
    pieces.extend(changes.values())
    changes.clear()
    if len(starts) > CHANGES_KEPT:
        del starts[: CHANGES_KEPT // 2], pieces[: CHANGES_KEPT // 2]


class Crossings:
    """Finds them, and remembers those of passes whose every crossing lies at a node that a module has hooked."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[_Crossing, ...]] = {}

    def remembered(self, state: ThreadState, roots: list[Any]) -> dict[int, str]:
        """Return the crossings of a pass that looks like an earlier one; none where it has to be walked."""
        since = state.scope_since
        state.scope_shape = _shape(state, roots)
        found = {since + offset: piece for offset, piece in self._known.get(state.scope_shape, ())}
        if not state.scope_claimed.issuperset(found):
            return {}
        state.scope_awaited.update(found)
        return found

    def next_since(self, state: ThreadState, number: int, *, whole: bool) -> int:
        """Return from which node on the next pass is looked at, after one that ended at the node ``number``."""
        since = state.scope_since
        count = len(state.scope_starts) - bisect_left(state.scope_starts, since)
        return number if whole or count > CHANGES_COMPARED else since

    def remember(self, state: ThreadState, crossings: dict[int, str], lowest: int) -> None:
        """Note the crossings that a walk has found, down to the node with the number ``lowest``."""
        since = state.scope_since
        if state.scope_shape in self._known or lowest < since or not state.scope_claimed.issuperset(crossings):
            return
        if len(self._known) >= SHAPES_KEPT:
            self._known.clear()
        self._known[state.scope_shape] = tuple((number - since, piece) for number, piece in crossings.items())

    def forget(self, state: ThreadState) -> None:
        """Walk such passes from now on: a hook that was told its scope has not run."""
        self._known[state.scope_shape] = ()


def _shape(state: ThreadState, roots: list[Any]) -> tuple[Any, ...]:
    """Return what a backward pass is known again by; numbers count from the end of the one before it."""
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
    """Yield the crossings among the nodes with these numbers, in the order in which they run."""
    starts, pieces = state.scope_starts, state.scope_pieces
    last, since = None, _NO_NUMBER
    for number in sorted(nodes, reverse=True):
        if number >= since:  # of the same stretch as the one before it
            continue
        place = bisect_right(starts, number) - 1
        piece, since = (pieces[place], starts[place]) if place >= 0 else ("", 0)
        piece = piece or state.scope
        if piece != last:
            last = piece
            yield number, piece


def numbered_nodes(roots: Iterable[Any], oldest: int) -> dict[int, Any]:
    """Return the nodes that ``roots`` lead to, by number; of those below ``oldest``, only the first met."""
    found: dict[int, Any] = {}
    waiting = list(roots)
    visit = waiting.append
    for node in waiting:  # it grows meanwhile
        number = node._sequence_nr()
        if number >= _NO_NUMBER or number in found:
            continue
        found[number] = node
        if number >= oldest:
            for following, _ in node.next_functions:
                if following is not None:
                    visit(following)
    return found
