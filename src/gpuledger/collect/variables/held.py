"""Names for tensors that are no weights, gradients or states: those of the attributes or variables that hold them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from gpuledger.collect.adapter.program_objects import (
    is_leaf,
    known_sizes,
    local_tensors,
    without_overrides,
)
from gpuledger.collect.attribution.roster.plain_tensors import plain_tensors
from gpuledger.collect.attribution.tensor_observations import StoragePlace, TensorObservations
from gpuledger.collect.variables.names import held_tensors
from gpuledger.model.accounts import Identity

MOST_SEARCHES = 6
"""Number of searches, each of which can take 3 ms: at the ends of recorded steps and of backward passes."""


class HeldNames:
    """Records which attribute of a module, or which variable, holds a tensor.

    Args:
        observed: Gets the names. One that knows a tensor as something else keeps that.
        place_of: Returns ``(device_idx, address)`` of a tensor's storage.
    """

    def __init__(self, observed: TensorObservations, place_of: Callable[[Any], StoragePlace | None]) -> None:
        self._observed = observed
        self._place_of = place_of
        self._searches = 0

    def see(self) -> None:
        """Record the names of the tensors that modules and the program's running functions hold now."""
        self._searches += 1
        if self._searches > MOST_SEARCHES:
            return
        observed, registry = self._observed, self._observed.registry
        with without_overrides(), torch._C._DisableTorchDispatch():
            found = list(plain_tensors(registry))
            variables = sorted(held_tensors(), key=lambda one: -prod(known_sizes(one[1])))  # a view after the whole
            found += [(registry.name_id(name), -1, value) for name, value in variables]
            for name_id, module_id, value in found:
                if registry.is_known(value):
                    continue
                kind = Identity.HELD_OUTSIDE_GRAPHS if is_leaf(value) else Identity.HELD
                for tensor in local_tensors(value):
                    place = self._place_of(tensor)
                    if place is not None:
                        observed.add_row(observed.row_of(kind, name_id, module_id, place))
