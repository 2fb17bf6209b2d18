"""Everything that is observed of sharded training while steps are recorded."""

from __future__ import annotations

from collections.abc import Iterator

from gpuledger.collect.adapter.guard import take_out_all
from gpuledger.collect.sharding.bucket_views import BucketViews
from gpuledger.collect.sharding.communication_hooks import CommunicationHooks
from gpuledger.collect.sharding.flat_parameters import FlatParameters
from gpuledger.collect.sharding.fully_shard import FullyShardedGroups
from gpuledger.collect.sharding.joined_ranks import JoinedRanks
from gpuledger.collect.sharding.layouts import FlatLayout
from gpuledger.collect.sharding.marked_calls import ShardingContext
from gpuledger.collect.sharding.pipeline_stages import PipelineStages
from gpuledger.collect.sharding.zero_partitions import ZeroPartitions
from gpuledger.model.journal.journal import Part


class ShardedTraining:
    """Observes FSDP1, FSDP2, ZeRO, pipelines and gradients in buckets, between :meth:`install` and :meth:`remove`.

    Args:
        context: What the observers write to.
    """

    def __init__(self, context: ShardingContext) -> None:
        self._flat, self._zero = FlatParameters(context), ZeroPartitions(context)
        self._stages, self._joined = PipelineStages(context), JoinedRanks(context)
        others = (CommunicationHooks(context), BucketViews(context), self._joined)
        self._observers = (FullyShardedGroups(context), self._flat, self._zero, self._stages, *others)

    def install(self) -> None:
        """Observe what the program has imported since the last call."""
        for observer in self._observers:
            observer.install()

    def remove(self) -> None:
        """Stop observing."""
        take_out_all([observer.remove for observer in self._observers])

    def drain(self, part: Part) -> None:
        """Write the stages of a pipeline that this rank has, and whether ranks may take different numbers of steps."""
        numbers = self._stages.numbers()
        if numbers:
            part.facts["pipeline_stages"] = numbers
        if self._joined.are_used:
            part.facts["joins_ranks"] = True

    def flat_layouts(self) -> Iterator[FlatLayout]:
        """Yield the part of each flat or partitioned parameter that this rank has to hold."""
        yield from self._flat.layouts()
        yield from self._zero.layouts()
