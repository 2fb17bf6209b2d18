"""Updates that run inside of a backward pass, in hooks that the program has registered for complete gradients.

Such a hook (``Tensor.register_post_accumulate_grad_hook``) updates a weight as soon as it has its gradient, and can
remove the gradient then. Autograd runs it inside of the node that accumulates the gradient: while this node runs, the
operators are those of an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.program_objects import gradient_hooks_of, is_tensor, without_overrides
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.node_hooks import NodeHooks
from gpuledger.collect.variables.updates import WeightUpdates


class HookedUpdates:
    """Shows gradients to ``updates`` as soon as they are complete, of the tensors that have hooks for this.

    Args:
        registry: The modules and their parameters.
        updates: Follows gradients through operators.
        guard: Handles exceptions raised in gpuledger's code.
        sees_operators: Whether ``updates`` is shown the operators of a backward pass. If not, nothing is done.
    """

    def __init__(self, registry: ModuleRegistry, updates: WeightUpdates, guard: Guard, *, sees_operators: bool) -> None:
        self._registry = registry
        self._sees_operators = sees_operators
        self._updates = updates
        self._guard = guard
        self._hooks = NodeHooks()

    def are_expected(self) -> bool:
        """Return whether a parameter has such a hook."""
        if not self._sees_operators:
            return False
        held = (reference() for reference, *_ in self._registry.parameters)
        with without_overrides():
            return any(has_hooks(one) for one in held if is_tensor(one))

    def begin(self, accumulators: Iterable[tuple[Any, Any]], places: Mapping[int, tuple[int, int]]) -> None:
        """Follow the hooks of the pass that begins.

        Args:
            accumulators: Nodes of its graph that accumulate gradients, and their tensors.
            places: ``id`` of a tensor -> ids of its name and module.
        """
        self.end()
        if not self._sees_operators:
            return
        for node, leaf in accumulators:
            self._hooks.add_before(node, self._guard(partial(self._accumulates, leaf, places.get(id(leaf), (-1, -1)))))
            self._hooks.add_after(node, self._guard(self._accumulated))

    def end(self) -> None:
        """Follow no more hooks: the pass has ended."""
        self._hooks.remove()
        self._updates.hook_ended()

    def _accumulates(self, leaf: Any, place: tuple[int, int], gradients: Any) -> None:
        with without_overrides():
            gradient = next((one for one in gradients if is_tensor(one)), None)
            if gradient is not None:
                is_registered = self._registry.is_known(leaf)
                self._updates.hook_begins((*place, leaf, gradient), registered=is_registered)

    def _accumulated(self, *_: Any) -> None:
        self._updates.hook_ended()


def has_hooks(tensor: Any) -> bool:
    """Return whether a tensor has hooks for its complete gradient."""
    return bool(gradient_hooks_of(tensor))
