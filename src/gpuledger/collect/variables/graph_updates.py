"""Updates of weights in code of TorchInductor, which runs no operators: those of the captured graph are followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gpuledger.collect.adapter.compiler.graph_operations import GraphFlow, GraphValue
from gpuledger.collect.variables.updates import Value, WeightUpdates

_Known = dict[str, Value]


class GraphUpdates:
    """Follows what compiled code computes while operators are followed.

    Args:
        updates: Follows gradients through operators.
    """

    def __init__(self, updates: WeightUpdates) -> None:
        self._updates = updates

    def see(self, flow: GraphFlow, inputs: Mapping[str, Any]) -> Callable[[Sequence[Any]], None] | None:
        """Follow code that is called now.

        Args:
            flow: What it computes.
            inputs: Tensors under the names that they have in the graph.

        Returns:
            What is to be called with the tensors that the code returns; None if it changes its inputs, which is
            followed at once.
        """
        if not self._updates.is_on:
            return None
        known = {name: values[0] for name, one in inputs.items() if (values := self._updates.values_of(one))}
        if not flow.results:
            self._follow(flow, known)
            return None
        without_tensors = {name: one._replace(tensor=None) for name, one in known.items()}
        return partial(self._returned, flow, without_tensors)

    def _returned(self, flow: GraphFlow, known: _Known, tensors: Sequence[Any]) -> None:
        """Follow code that has made new tensors. Code of a forward pass returns others after these."""
        if len(tensors) < len(flow.results):
            return
        found = [self._updates.values_of(one) for one in tensors[: len(flow.results)]]
        results = [(made.name, values[0]) for made, values in zip(flow.results, found, strict=True) if values]
        if len(results) == len(found):
            self._follow(flow, dict(results) | known)

    def _follow(self, flow: GraphFlow, known: _Known) -> None:
        numbers: dict[str, int] = {}

        def value_of(one: GraphValue) -> Value:
            address, _, tensor = known.get(one.name) or (~numbers.setdefault(one.name, len(numbers)), 0, None)
            return Value(address, one.elements, tensor)

        for read, written, is_new in flow.operations:
            self._updates.follow(
                [[value_of(one) for one in values] for values in read],
                [[value_of(one) for one in values] for values in written],
                is_new=is_new,
            )
        for number in numbers.values():
            self._updates.forget(~number)
