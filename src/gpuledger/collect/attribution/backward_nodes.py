"""Modules of the nodes that autograd creates while it runs other nodes, as for a gradient penalty.

``create_graph=True`` makes the backward of a graph a graph of its own, for another backward. What a node creates there
belongs to the node's module. Autograd calls no module at that time, so no output of a module leads to these nodes, and
:mod:`.node_claims` hooks none of them. Their numbers show their modules: whenever the current module changes on a
thread, the next number of that thread is kept. Before a later backward, its graph is walked, and these nodes are
hooked.

A GPU's backward runs on a thread of its own, and two threads give the same numbers. So a node of another thread counts
as one of these only if ``autograd.grad`` has returned it, or if such a node leads to it and the graph that was
differentiated had no node of this number and name.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeVar

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.program_objects import class_name, grad_fn_of, tensors_in
from gpuledger.collect.attribution.phases import OUTSIDE, Owner, ThreadState
from gpuledger.collect.attribution.scope_crossings import NO_NUMBER

MOST_CHANGES = 1 << 16
"""Maximum number of changes of the module that are kept per thread. The older half is dropped."""

MOST_THREADS = 64
"""Maximum number of threads whose changes are kept, the newest."""

MOST_NODES = 1 << 17
"""Maximum number of nodes of differentiated graphs that are kept, each with its number and name."""

_RESULT_LEVELS = 2

_T = TypeVar("_T")

_Key = tuple[int, str]
"""Number and name of a node."""


class _Makers:
    """Whose nodes one thread created from which number on. None: nodes that were not created in backward."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._owners: list[Owner | None] = []

    def change(self, number: int, owner: Owner | None) -> None:
        """Let the nodes from ``number`` on be those of ``owner``."""
        starts, owners = self._starts, self._owners
        if starts and number < starts[-1]:  # another thread has the identity of one that has ended
            starts.clear()
            owners.clear()
        if (owners[-1] if owners else None) == owner:
            return
        if starts and starts[-1] == number:
            owners[-1] = owner
            return
        owners.append(owner)  # first: another thread that finds the start finds its owner
        starts.append(number)
        if len(starts) > MOST_CHANGES:
            del starts[: MOST_CHANGES // 2], owners[: MOST_CHANGES // 2]

    def of(self, number: int) -> Owner | None:
        """Return the owner of a node; None if it was not created in backward."""
        place = bisect_right(self._starts, number) - 1
        found = self._owners[place : place + 1] if place >= 0 else None  # the thread itself can remove it meanwhile
        return found[0] if found else None


class BackwardNodes:
    """Knows the modules of nodes that were created in backward."""

    def __init__(self) -> None:
        self._next_number = torch_private.sequence_reader()
        self._makers: dict[int, _Makers] = {}
        self._creating: dict[int, _Makers] = {}
        """The threads that have created nodes in the pass in progress."""
        self._differentiated: set[_Key] = set()
        self._returned: dict[_Key, _Makers | None] = {}
        self._found: set[_Key] = set()

    def runs(self, owner: Owner) -> None:
        """Record that this thread runs the nodes of ``owner`` from now on, and whether these create nodes."""
        thread = threading.get_ident()
        makers = self._makers.get(thread)
        if torch.is_grad_enabled():
            if makers is None:
                makers = self._makers[thread] = _Makers()
            self._creating[thread] = makers
            makers.change(self._next_number(), owner)
        elif makers is not None:
            makers.change(self._next_number(), None)

    def before_pass(
        self, state: ThreadState, roots: Iterable[Any], *, creates_graph: bool
    ) -> Iterator[tuple[Any, Owner]]:
        """Yield nodes of the graph that is about to run and need a hook, with their owners.

        These are the nodes that were created in backward, and the nodes of forward without a hook: autograd can run
        one of these after any of those, and a pass that creates nodes must know the module of each of its own.

        Args:
            state: State of the calling thread.
            roots: The root nodes of the pass.
            creates_graph: Whether the pass creates nodes itself.
        """
        if not (creates_graph or self._makers):
            return
        made, others = self._walk(roots)
        if creates_graph:
            self._differentiated.update(others)
        for key, (node, owner) in made.items():
            if owner is not None and key not in self._found:
                yield node, owner
        if made or creates_graph:
            numbers = sorted(state.created)
            for key, node in others.items():
                place = bisect_left(numbers, key[0])
                if key[0] not in state.claimed and key not in self._found:
                    yield node, state.created[numbers[place]] if place < len(numbers) else (OUTSIDE, -1)
            self._found.update(made, others)

    def after_pass(self, result: Any, *, creates_graph: bool, whole: bool) -> None:
        """Record the end of a pass, and what ``autograd.grad`` has returned.

        ``whole`` is False for ``autograd.grad``.
        """
        makers = self._makers.get(threading.get_ident())
        if makers is not None:
            makers.change(self._next_number(), None)
        if creates_graph:
            for tensor in tensors_in(result, _RESULT_LEVELS):
                node = grad_fn_of(tensor)
                if node is not None:
                    key = _key_of(node)
                    self._returned[key] = _the_one([one for one in list(self._creating.values()) if one.of(key[0])])
            self._creating.clear()
            for thread in list(self._makers)[:-MOST_THREADS]:
                self._makers.pop(thread, None)  # another thread can have removed it
        elif (whole and self._found) or len(self._differentiated) + len(self._found) > MOST_NODES:
            for kept in (self._differentiated, self._returned, self._found):
                kept.clear()

    def _walk(self, roots: Iterable[Any]) -> tuple[dict[_Key, tuple[Any, Owner | None]], dict[_Key, Any]]:
        """Return the nodes that were created in backward with their owners, and the other nodes, by key."""
        own = self._makers.get(threading.get_ident())
        made: dict[_Key, tuple[Any, Owner | None]] = {}
        others: dict[_Key, Any] = {}
        waiting: list[tuple[Any, bool, _Makers | None]] = [(node, False, None) for node in roots]
        for node, from_made, makers in waiting:  # the list grows during the iteration
            key = _key_of(node)
            if key[0] >= NO_NUMBER:
                continue
            owner = None if own is None else own.of(key[0])
            is_made = owner is not None or (key not in self._differentiated if from_made else key in self._returned)
            if key in (made if is_made else others):
                continue
            if is_made:
                makers = own if owner is not None else makers or self._returned.get(key)
                made[key] = node, (makers and makers.of(key[0])) or self._of_other_threads(key[0])
            else:
                others[key] = node
            waiting += [(following, is_made, makers) for following, _ in node.next_functions if following is not None]
        return made, others

    def _of_other_threads(self, number: int) -> Owner | None:
        """Return the owner of a node that one of the other threads has created; None if it could be several."""
        return _the_one({owner for makers in list(self._makers.values()) if (owner := makers.of(number)) is not None})


def _the_one(found: Collection[_T]) -> _T | None:
    return next(iter(found)) if len(found) == 1 else None


def _key_of(node: Any) -> _Key:
    return node._sequence_nr(), class_name(type(node))
