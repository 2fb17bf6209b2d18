"""This rank's place among the ranks, and the part of each parameter that it has to hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import distributed

from gpuledger.collect.adapter.distributed_tensors import MeshPlace, layout_of_shards
from gpuledger.collect.adapter.program_objects import (
    device_number,
    device_of,
    is_leaf,
    local_part,
    parameter_groups,
    requires_grad,
    shape_of,
    state_of,
    tensors_in,
    without_overrides,
)
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.model.journal.journal import Part

MOST_PARAMETERS = 20_000
"""Maximum number of parameters whose part is stored."""

LayoutRow = tuple[int, int, int, int, int, int, int, int, int]
"""One parameter: name, module, whole bytes, bytes of this rank's part, number of parts, bytes of its part of the
gradient, bytes and number of parts of its optimizer state, and device."""


@dataclass(frozen=True)
class FlatLayout:
    """A flat parameter: its place, its elements, and those of this rank's part.

    ``tensor`` is this rank's part. ``updated`` are the flat parameter and those in it: an optimizer has state of
    either. ``copy_item_bytes`` is the size of an element in a second copy of the part, in which weights are updated.
    """

    name_id: int
    module_id: int
    whole_elements: int
    part_elements: int
    parts: int
    tensor: Any
    updated: list[Any]
    copy_item_bytes: int = 0


class Layouts:
    """Collects the device mesh and the layout of every parameter. Keeps no tensor.

    Args:
        registry: The modules and their parameters.
        observed: Knows the plain tensors that are parts of flat parameters.
        flat: Yields the layouts of flat parameters.
        optimizers: Returns the program's optimizers.
    """

    def __init__(
        self,
        registry: ModuleRegistry,
        observed: TensorObservations,
        flat: Callable[[], Iterable[FlatLayout]],
        optimizers: Callable[[], Iterable[Any]],
    ) -> None:
        self._registry, self._observed, self._flat, self._optimizers = registry, observed, flat, optimizers
        self._rows: list[LayoutRow] = []
        self._meshes: dict[tuple[tuple[str, ...], tuple[int, ...]], MeshPlace] = {}
        self._world: tuple[int, int] | None = None

    def see(self) -> None:
        """Read the layouts. Does nothing if the program has not initialized a process group of several ranks."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return
        ranks, rank = int(distributed.get_world_size()), int(distributed.get_rank())
        if ranks < 2 or rank < 0:
            return
        self._world = ranks, rank
        with without_overrides():
            parts, states = self._observed.part_ids(), States(self._optimizers(), self._observed, ranks)
            rows = (self._row(*known, parts, states) for known in self._registry.parameters[:MOST_PARAMETERS])
            flat = (_flat_row(one, states) for one in self._flat())
            self._rows = [*(row for row in rows if row is not None), *flat]

    def _row(self, held: Any, name_id: int, module_id: int, parts: set[int], states: States) -> LayoutRow | None:
        """Return the row of one parameter; None if it is part of a flat parameter."""
        tensor = held()
        if tensor is None or id(tensor) in parts or not is_leaf(tensor):
            return None
        layout = layout_of_shards(tensor)
        item_bytes = int(tensor.dtype.itemsize)
        whole = tuple(int(size) for size in shape_of(tensor))
        elements = math.prod(whole)
        part, count = elements, 1
        if layout is not None:
            part, count = layout.shard_elements(whole), layout.parts
            self._meshes.setdefault((layout.place.names, layout.place.shape), layout.place)
        part_bytes = part * item_bytes
        has_own = requires_grad(tensor) and not states.are_of_parts(tensor)  # else gradients are those of the parts
        gradient_bytes = part_bytes if has_own else 0
        state_bytes, state_parts = states.of(tensor, elements, part, count)
        device_idx = device_number(local_part(tensor))
        sizes = (elements * item_bytes, part_bytes, count, gradient_bytes, state_bytes, state_parts)
        return name_id, module_id, *sizes, device_idx

    def drain(self, part: Part) -> None:
        """Write what was collected."""
        if self._world is not None:
            part.facts["world"] = {"size": self._world[0], "rank": self._world[1]}
        meshes = list(self._meshes.values())
        if meshes:
            part.facts["mesh"] = _described(max(meshes, key=lambda mesh: len(mesh.shape)))
        if len(meshes) > 1:
            part.facts["meshes"] = [_described(one) for one in meshes]
        if self._rows:
            part.facts["shards"] = [list(row) for row in self._rows]


def _described(mesh: MeshPlace) -> dict[str, Any]:
    return {"names": list(mesh.names), "shape": list(mesh.shape), "coordinate": list(mesh.coordinate)}


class States:
    """The optimizer state that this rank has to hold.

    A tensor of the state with as many elements as its parameter has an element for each of the parameter's: this rank
    has to hold those of its part. Other tensors count as they are.

    Args:
        optimizers: The program's optimizers.
        observed: Knows the optimizers and frameworks that divide the state of whole parameters among the ranks.
        ranks: Number of ranks.
    """

    def __init__(self, optimizers: Iterable[Any], observed: TensorObservations, ranks: int) -> None:
        self._held: dict[int, dict[int, Any]] = {}
        self._of_parts = {id(one) for one in observed.updated_in_parts}
        self._divided = set(self._of_parts)
        self._ranks = ranks
        for optimizer in optimizers:
            if observed.divides(optimizer):
                self._divided.update(id(one) for group in parameter_groups(optimizer) for one in group)
            for parameter, values in state_of(optimizer):
                self._held.setdefault(id(parameter), {}).update((id(one), one) for one in tensors_in(values))

    def are_of_parts(self, parameter: Any) -> bool:
        """Return whether other tensors than a whole parameter are updated, one on each rank."""
        return id(parameter) in self._of_parts

    def of(self, parameter: Any, elements: int, part: int, parts: int) -> tuple[int, int]:
        """Return the bytes of a parameter's state, and the number of parts that it is divided into.

        Args:
            parameter: The parameter.
            elements: Its number of elements.
            part: The number of elements of this rank's part.
            parts: The number of its parts.
        """
        size_bytes = 0
        for tensor in self._held.get(id(parameter), {}).values():
            local = local_part(tensor)
            if device_of(local) != device_of(local_part(parameter)):
                continue
            has_all = math.prod(shape_of(tensor)) == elements
            size_bytes += (part if has_all else math.prod(shape_of(local))) * int(tensor.dtype.itemsize)
        return size_bytes, self._ranks if id(parameter) in self._divided else parts

    def bytes_per_element(self, parameters: Iterable[Any]) -> int:
        """Return the bytes of state for each element of some parameters, of the one that has most."""
        return max(self.of(one, count := math.prod(shape_of(one)), count, 1)[0] // max(count, 1) for one in parameters)


def _flat_row(flat: FlatLayout, states: States) -> LayoutRow:
    item_bytes = int(flat.tensor.dtype.itemsize)
    weight_bytes = item_bytes + flat.copy_item_bytes
    part_bytes = flat.part_elements * weight_bytes
    gradient_bytes = flat.part_elements * item_bytes if any(requires_grad(one) for one in flat.updated) else 0
    state_bytes = flat.part_elements * states.bytes_per_element(flat.updated)
    sizes = (flat.whole_elements * weight_bytes, part_bytes, flat.parts, gradient_bytes, state_bytes, flat.parts)
    return flat.name_id, flat.module_id, *sizes, device_number(flat.tensor)
