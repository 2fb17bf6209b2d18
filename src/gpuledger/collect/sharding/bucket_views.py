"""Gradients that DistributedDataParallel copies into its buckets, with ``gradient_as_bucket_view=True``.

Each ``.grad`` is then a view of a bucket. Backward computes the gradient of a weight into memory of its own, which is
freed after the copy. Nothing of Python runs in between, so the nodes that accumulate the gradients have hooks while
steps are recorded. The reducer keeps these nodes alive.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch.autograd.graph import get_gradient_edge

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.program_objects import attributes_of, is_tensor, requires_grad, without_overrides
from gpuledger.collect.attribution.node_hooks import NodeHooks
from gpuledger.collect.attribution.phases import OUTSIDE
from gpuledger.collect.sharding.library_observer import LibraryObserver
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext
from gpuledger.model.accounts import Identity

DATA_PARALLEL = "torch.nn.parallel.distributed"
"""Module of torch with the class ``DistributedDataParallel``."""

UNKNOWN_TORCH = (
    "Gradients that DistributedDataParallel copies into buckets are attributed by their lifetime only, because this "
    "version of PyTorch is not supported: {}."
)


class BucketViews(LibraryObserver):
    """Observes gradients before they are copied into buckets, between :meth:`install` and :meth:`remove`.

    Args:
        context: What it writes to.
    """

    module, unsupported = DATA_PARALLEL, UNKNOWN_TORCH

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, lambda _: OUTSIDE))
        self._hooks = NodeHooks()
        self._hooked: dict[int, ref[Any]] = {}

    def observe(self) -> None:
        """Hook the nodes at the first call of each model whose gradients are views."""
        self._calls.call_before(sys.modules[DATA_PARALLEL].DistributedDataParallel.forward, self._hook)

    def remove(self) -> None:
        """Stop observing."""
        super().remove()
        self._hooks.remove()
        self._hooked.clear()

    def _hook(self, model: Any) -> None:
        """Hook the nodes of a model. Compiled autograd would compile the hooks together with the nodes."""
        own, known = attributes_of(model), self._hooked.get(id(model))
        if torch_private.compiles_backward() or torch.compiler.is_compiling():
            return
        if not own.get("gradient_as_bucket_view") or (known is not None and known() is model):
            return
        owners = self._context.observed.owners()
        parameters = [one for one in own.get("_module_parameters") or () if requires_grad(one)]
        if any(id(one) not in owners for one in parameters):
            return  # its modules are not registered yet
        self._hooked[id(model)] = ref(model)
        with without_overrides(), torch._C._DisableTorchDispatch():
            nodes = [get_gradient_edge(one).node for one in parameters]
        for parameter, node in zip(parameters, nodes, strict=True):
            see = partial(self._see, *owners[id(parameter)])
            self._hooks.add_before(node, self._context.guard(see))

    def _see(self, name_id: int, module_id: int, gradients: Any) -> None:
        """Record the gradients that a node is about to accumulate."""
        found = [one for one in gradients if is_tensor(one)]
        self._context.observed.see((Identity.GRADIENT, name_id, module_id, one) for one in found)
