"""Tensors that no module and no optimizer holds, and that a program trains all the same.

What a backward pass writes into ``.grad`` is a gradient, and the tensor that has it is a leaf of the graph. A leaf that
the program has made outside of all modules is a weight. Autograd's accumulators of gradients know the leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from gpuledger.collect.adapter.other_threads import gradients_of
from gpuledger.collect.adapter.program_objects import (
    class_name,
    innermost_tensor,
    is_exactly,
    is_leaf,
    is_tensor,
    place_in_memory,
    requires_grad,
    storage_address,
    without_overrides,
)
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.variables.held import HeldNames
from gpuledger.collect.variables.hooked_updates import HookedUpdates, has_hooks
from gpuledger.collect.variables.names import names_of
from gpuledger.collect.variables.updates import WeightUpdates
from gpuledger.model.accounts import Identity

MOST_NODES = 20_000
"""Largest number of nodes of a graph that are searched for leaves, which takes 20 ms."""

MOST_IN_VAIN = 2
"""Number of passes without such a leaf, one after the other, from which on no pass is searched.

A search takes 2 ms in a graph of 150 parameters. Two, because a GAN begins with a pass of its discriminator.
"""

_ACCUMULATOR = "AccumulateGrad"

_Pair = tuple[Any, Any]
"""A leaf and its gradient, or the node that accumulates it and the leaf."""

_Place = tuple[int, int]
"""Ids of a leaf's name and module; -1 for none."""


class LooseLeaves:
    """Finds the leaves of backward passes that are not registered, and the gradients of leaves.

    Args:
        observed: Knows the registered tensors, and records what others are.
        updates: Gets the gradients of leaves after each backward pass.
        held: Names other tensors after each pass.
        hooked: Follows hooks that update leaves inside of a pass.
    """

    def __init__(
        self, observed: TensorObservations, updates: WeightUpdates, held: HeldNames, hooked: HookedUpdates
    ) -> None:
        self._observed = observed
        self._updates = updates
        self._held = held
        self._hooked = hooked
        self._places: dict[tuple[int, int], _Place] = {}
        """Leaves of the pass before, by id and address."""
        self._in_vain = 0

    def below(self, nodes: Iterable[Any]) -> list[Any]:
        """Return the leaves below nodes of a graph that are not registered. Later ones of modules are not searched."""
        is_searched = self._in_vain < MOST_IN_VAIN
        if not (is_searched or self._hooked.are_expected()):
            return []
        found = _leaves_below(nodes)
        with without_overrides():
            hooked = [one for one in found if has_hooks(one[1])]
        if hooked:
            leaves = [leaf for _, leaf in hooked]
            places = zip(map(id, leaves), self._places_of(leaves), strict=True)
            self._hooked.begin(hooked, dict(places))
        loose = [leaf for _, leaf in found if not self._observed.registry.is_known(leaf)] if is_searched else []
        self._in_vain = 0 if loose else self._in_vain + 1
        return loose

    def backward_ended(self, leaves: Sequence[Any]) -> None:
        """Record those of the leaves that have a gradient, and the gradients.

        If another thread could write gradients, nothing is recorded.
        """
        self._hooked.end()
        with without_overrides():
            gradients = gradients_of(leaves) or ()
        pairs = [(leaf, gradient) for leaf, gradient in zip(leaves, gradients, strict=False) if gradient is not None]
        places = self._places_of([leaf for leaf, _ in pairs])
        self._observed.see((Identity.LEAF, *place, leaf) for place, (leaf, _) in zip(places, pairs, strict=True))
        self._observed.see((Identity.LEAF_GRADIENT, *place, one) for place, (_, one) in zip(places, pairs, strict=True))
        self._pass_ended(places, pairs)

    def differentiated(self, inputs: Any, result: Any) -> None:
        """Record the gradients that ``autograd.grad`` has returned of leaves.

        A gradient with a graph is none of those: the program goes on to compute with it.
        """
        leaves, gradients = _elements(inputs), _elements(result)
        if len(leaves) != len(gradients):
            return
        with without_overrides():
            pairs: list[_Pair] = [
                (innermost_tensor(leaf), final)
                for leaf, one in zip(leaves, gradients, strict=True)
                if is_tensor(leaf) and is_leaf(leaf) and is_tensor(one) and (final := _without_graph(one)) is not None
            ]
        places = self._places_of([leaf for leaf, _ in pairs])
        self._observed.see((Identity.LEAF_GRADIENT, *place, one) for place, (_, one) in zip(places, pairs, strict=True))
        self._pass_ended(places, pairs)

    def _pass_ended(self, places: list[_Place], pairs: list[_Pair]) -> None:
        with without_overrides(), torch._C._DisableTorchDispatch():
            found = [(*place, *pair) for place, pair in zip(places, pairs, strict=True)]
            self._updates.gradients_seen(found, registered=False)
        self._held.see()

    def _places_of(self, leaves: list[Any]) -> list[_Place]:
        """Return the place of each leaf. One of the pass before keeps its own: a loop does not search in vain.

        Leaves that are not registered can have stood in for a module's parameters, which are in their places again.
        """
        with without_overrides():
            keys = [(id(leaf), storage_address(leaf)) for leaf in leaves]
        registered = self._observed.owners()
        known = [registered.get(key[0]) or self._places.get(key) for key in keys]
        if None in known:
            alike = self._observed.owners_by_place()
            with without_overrides():
                found = [place_in_memory(leaf) for leaf in leaves]
            known = [place or alike.get(key) for key, place in zip(found, known, strict=True)]
        unknown = [leaf for leaf, place in zip(leaves, known, strict=True) if place is None]
        names: dict[int, str] = {}
        if unknown:
            names = names_of(unknown)
            self._observed.see_weights()
        places = [place or (self._name_id(names.get(key[0])), -1) for key, place in zip(keys, known, strict=True)]
        self._places = dict(zip(keys, places, strict=True))
        return places

    def _name_id(self, name: str | None) -> int:
        return -1 if name is None else self._observed.registry.name_id(name)


def _leaves_below(nodes: Iterable[Any]) -> list[_Pair]:
    """Return the nodes by which a backward pass from these nodes can write gradients, and their tensors."""
    waiting: deque[Any] = deque(nodes)
    seen: set[Any] = set()
    found: list[_Pair] = []
    while waiting and len(seen) < MOST_NODES:
        node = waiting.popleft()
        if node in seen:
            continue
        seen.add(node)
        if class_name(type(node)) == _ACCUMULATOR:
            found.append((node, node.variable))
        else:
            waiting.extend(following for following, _ in node.next_functions if following is not None)
    return found


def _elements(thing: Any) -> list[Any]:
    """Return what ``autograd.grad`` takes or returns, one by one; empty for an iterator, which it needs itself."""
    if is_tensor(thing):
        return [thing]
    if is_exactly(thing, dict):
        return list(dict.values(thing))
    return list(thing) if is_exactly(thing, list, tuple) else []


def _without_graph(gradient: Any) -> Any:
    """Return the tensor of a gradient; None if it has a graph. ``torch.func`` always makes one, in its own wrapper."""
    if torch._C._functorch.is_functorch_wrapped_tensor(gradient):
        gradient = torch._C._functorch.get_unwrapped(gradient)
    while not requires_grad(gradient):
        if not torch._C._functorch.is_functorch_wrapped_tensor(gradient):
            return gradient
        gradient = torch._C._functorch.get_unwrapped(gradient)
    return None
