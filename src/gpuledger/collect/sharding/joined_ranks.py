"""Trainings in which ranks may take different numbers of steps: ``join()`` of a model, or torch's ``Join``."""

from __future__ import annotations

import sys
from typing import Any

from gpuledger.collect.adapter.program_objects import attributes_of
from gpuledger.collect.attribution.phases import OUTSIDE
from gpuledger.collect.sharding.library_observer import LibraryObserver
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext

JOIN_MODULE = "torch.distributed.algorithms.join"
"""Module of torch with the class ``Join``."""

UNKNOWN_TORCH = (
    "It is not known whether ranks may take different numbers of steps, because this version of PyTorch is not "
    "supported: {}."
)


class JoinedRanks(LibraryObserver):
    """Observes whether the program uses ``Join``, between :meth:`install` and :meth:`remove`.

    Args:
        context: The guard, and the notes.
    """

    module, unsupported = JOIN_MODULE, UNKNOWN_TORCH

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, lambda _: OUTSIDE))
        self.are_used = False

    def observe(self) -> None:
        """Observe the method that models and optimizers call in each step, also outside of ``Join``."""
        self._calls.call_before(sys.modules[JOIN_MODULE].Join.notify_join_context, self._see)

    def _see(self, joinable: Any) -> None:
        config = attributes_of(joinable).get("_join_config")
        if isinstance(config, tuple) and config and tuple.__getitem__(config, 0) is True:
            self.are_used = True
