"""Everything that is observed of sharded training while steps are recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuledger.collect.adapter.guard import Guard, do_all
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.sharding.flat_parameters import FlatParameters
from gpuledger.collect.sharding.fully_shard import FullyShardedGroups
from gpuledger.collect.sharding.layouts import LayoutRow


class ShardedTraining:
    """Observes FSDP1 and FSDP2, between :meth:`install` and :meth:`remove`.

    Args:
        phases: The tokens of each thread.
        registry: Ids of modules.
        sightings: Records the addresses of tensors.
        resized: Called with tensors that got or lost their memory without an operator.
        guard: Handles exceptions of gpuledger's code.
        note: Called with a sentence for the user.
    """

    def __init__(
        self,
        phases: Phases,
        registry: ModuleRegistry,
        sightings: TensorObservations,
        resized: Callable[[list[object]], None],
        guard: Guard,
        note: Callable[[str], None],
    ) -> None:
        given = (phases, registry, sightings, resized, guard, note)
        self._groups, self._flat = FullyShardedGroups(*given), FlatParameters(*given)

    def install(self) -> None:
        """Observe what the program has imported since the last call."""
        self._groups.install()
        self._flat.install()

    def remove(self) -> None:
        """Stop observing."""
        do_all([self._groups.remove, self._flat.remove])

    def layout_rows(self) -> Iterator[LayoutRow]:
        """Yield the part of each flat parameter that this rank has to hold."""
        yield from self._flat.layout_rows()
