"""Everything that is observed of sharded training while steps are recorded."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.collect.adapter.guard import take_out_all
from gpuledger.collect.sharding.flat_parameters import FlatParameters
from gpuledger.collect.sharding.fully_shard import FullyShardedGroups
from gpuledger.collect.sharding.layouts import FlatLayout
from gpuledger.collect.sharding.marked_calls import ShardingObserver
from gpuledger.collect.sharding.zero_partitions import ZeroPartitions


class ShardedTraining:
    """Observes FSDP1, FSDP2 and DeepSpeed's ZeRO, between :meth:`install` and :meth:`remove`.

    Args:
        watch: What is written to.
    """

    def __init__(self, watch: ShardingObserver) -> None:
        self._groups, self._flat = FullyShardedGroups(watch), FlatParameters(watch)
        self._zero = ZeroPartitions(watch)

    def install(self) -> None:
        """Observe what the program has imported since the last call."""
        self._groups.install()
        self._flat.install()
        self._zero.install()

    def remove(self) -> None:
        """Stop observing."""
        take_out_all([self._groups.remove, self._flat.remove, self._zero.remove])

    def flat_layouts(self) -> Iterator[FlatLayout]:
        """Yield the part of each flat or partitioned parameter that this rank has to hold."""
        yield from self._flat.layouts()
        yield from self._zero.layouts()
