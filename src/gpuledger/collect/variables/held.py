"""Names for tensors that are no weights, gradients or states: those of the attributes or variables that hold them."""

from __future__ import annotations

import torch

from gpuledger.collect.adapter.program_objects import local_tensors, without_overrides
from gpuledger.collect.attribution.tensor_observations import TensorObservations, storage_place
from gpuledger.collect.variables.names import held_tensors
from gpuledger.model.accounts import Identity

MOST_SEARCHES = 6
"""Number of searches, each of which can take 3 ms: at the ends of recorded steps and of backward passes."""


class HeldNames:
    """Records which attribute of a module, or which variable, holds a tensor.

    Args:
        sightings: Gets the names. One that knows a tensor as something else keeps that.
    """

    def __init__(self, sightings: TensorObservations) -> None:
        self._sightings = sightings
        self._searches = 0

    def see(self) -> None:
        """Record the names of the tensors that modules and the program's running functions hold now."""
        self._searches += 1
        if self._searches > MOST_SEARCHES:
            return
        sightings, registry = self._sightings, self._sightings.registry
        with without_overrides(), torch._C._DisableTorchDispatch():
            found = list(registry.plain_tensors())
            found += [(registry.name_id(name), -1, value) for name, value in held_tensors()]
            for name_id, module_id, value in found:
                if registry.is_known(value):
                    continue
                for tensor in local_tensors(value):
                    place = storage_place(tensor)
                    if place is not None:
                        sightings.add_row(sightings.row_of(Identity.HELD, name_id, module_id, place))
