"""Pipelines (``torch.distributed.pipelining``): the stages of this rank, and the buffers into which they get gradients.

A stage makes the buffers when its schedule runs first, and has them until the end. Buffers into which it receives
activations are the inputs of its module, and are observed as such.
"""

from __future__ import annotations

import sys
from typing import Any

from gpuledger.collect.adapter.program_objects import attributes_of
from gpuledger.collect.attribution.phases import OUTSIDE
from gpuledger.collect.sharding.library_observer import LibraryObserver
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext
from gpuledger.model.accounts import Identity

STAGE_MODULE = "torch.distributed.pipelining.stage"
"""Module of torch with the class ``_PipelineStageBase``."""

UNKNOWN_TORCH = (
    "Buffers of pipelines are attributed by their lifetime only, because this version of PyTorch is not supported: {}."
)


class PipelineStages(LibraryObserver):
    """Observes the stages of pipelines, between :meth:`install` and :meth:`remove`.

    Args:
        context: What it writes to.
    """

    module, unsupported = STAGE_MODULE, UNKNOWN_TORCH

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, self._module_of))
        self._numbers: set[int] = set()

    def observe(self) -> None:
        """Observe that a stage runs, and what it receives for its backward."""
        stage = sys.modules[STAGE_MODULE]._PipelineStageBase
        self._calls.call_before(stage.forward_one_chunk, self._see_stage)
        self._calls.call_after(stage.get_bwd_recv_ops, self._see_gradients)

    def numbers(self) -> list[int]:
        """Return the numbers of the stages that have run on this rank, from 0."""
        return sorted(self._numbers)

    def _see_stage(self, stage: Any) -> None:
        number = attributes_of(stage).get("stage_index")
        if isinstance(number, int):
            self._numbers.add(number)

    def _see_gradients(self, stage: Any, operations: Any) -> None:
        """Record the buffers of the operations that receive gradients."""
        buffers = [attributes_of(one).get("tensor") for one in operations]
        module_id = self._module_of(stage)
        self._context.observed.see((Identity.COMMUNICATION_BUFFER, -1, module_id, buffer) for buffer in buffers)

    def _module_of(self, stage: Any) -> int:
        """Return the id of a stage's module."""
        return self._context.registry.module_ids.get(id(attributes_of(stage).get("submod")), OUTSIDE)
