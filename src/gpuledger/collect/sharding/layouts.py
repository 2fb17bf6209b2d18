"""This rank's place among the ranks, and the part of each parameter that it has to hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import distributed

from gpuledger.collect.adapter.distributed_tensors import MeshPlace, layout_of_shards
from gpuledger.collect.adapter.program_objects import is_leaf, shape_of, without_overrides
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.model.journal.journal import Part

MOST_PARAMETERS = 20_000
"""Maximum number of parameters whose part is stored."""

LayoutRow = tuple[int, int, int, int, int]
"""Name, module, whole bytes, bytes of this rank's part, and the number of parts of one parameter."""


class Layouts:
    """Collects the device mesh and the layout of every parameter. Keeps no tensor.

    Args:
        registry: The modules and their parameters.
        sightings: Knows the plain tensors that are parts of flat parameters.
        flat_rows: Yields the parts of flat parameters.
    """

    def __init__(
        self, registry: ModuleRegistry, sightings: TensorObservations, flat_rows: Callable[[], Iterable[LayoutRow]]
    ) -> None:
        self._registry, self._sightings, self._flat_rows = registry, sightings, flat_rows
        self._rows: list[LayoutRow] = []
        self._mesh: MeshPlace | None = None
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
            parts = self._sightings.part_ids()
            rows = (self._row(*known, parts) for known in self._registry.parameters[:MOST_PARAMETERS])
            self._rows = [*(row for row in rows if row is not None), *self._flat_rows()]

    def _row(self, held: Any, name_id: int, module_id: int, parts: set[int]) -> LayoutRow | None:
        """Return the row of one parameter; None if it is part of a flat parameter."""
        tensor = held()
        if tensor is None or id(tensor) in parts or not is_leaf(tensor):
            return None
        layout = layout_of_shards(tensor)
        item_bytes = int(tensor.dtype.itemsize)
        whole = tuple(int(size) for size in shape_of(tensor))
        elements = math.prod(whole)
        if layout is None:
            return name_id, module_id, elements * item_bytes, elements * item_bytes, 1
        if self._mesh is None or len(layout.place.shape) > len(self._mesh.shape):
            self._mesh = layout.place
        return name_id, module_id, elements * item_bytes, layout.shard_elements(whole) * item_bytes, layout.parts

    def drain(self, part: Part) -> None:
        """Write what was collected."""
        if self._world is not None:
            part.facts["world"] = {"size": self._world[0], "rank": self._world[1]}
        if self._mesh is not None:
            mesh = self._mesh
            part.facts["mesh"] = {
                "names": list(mesh.names),
                "shape": list(mesh.shape),
                "coordinate": list(mesh.coordinate),
            }
        if self._rows:
            part.facts["shards"] = [list(row) for row in self._rows]
