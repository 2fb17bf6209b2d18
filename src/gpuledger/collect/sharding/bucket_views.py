"""Gradients that DistributedDataParallel copies into its buckets, and which gradients each bucket is for.

With ``gradient_as_bucket_view=True``, each ``.grad`` is a view of a bucket. Backward computes the gradient of a weight
into memory of its own, which is freed after the copy. Nothing of Python runs in between, so the nodes that accumulate
the gradients have hooks while steps are recorded. The reducer keeps these nodes alive. Otherwise, the buckets are other
memory than the gradients, and the reducer lists what is in them.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch.autograd.graph import get_gradient_edge

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.distributed_tensors import places_in_buckets
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
    """Observes buckets, and gradients before they are copied into them, between :meth:`install` and :meth:`remove`.

    Args:
        context: What it writes to.
    """

    module, unsupported = DATA_PARALLEL, UNKNOWN_TORCH

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, lambda _: OUTSIDE))
        self._hooks = NodeHooks()
        self._hooked: dict[int, ref[Any]] = {}
        self._listed: dict[int, tuple[ref[Any], object]] = {}

    def observe(self) -> None:
        """Hook the nodes at the first call of each model whose gradients are views, and list buckets of others."""
        parallel = sys.modules[DATA_PARALLEL].DistributedDataParallel
        self._calls.call_before(parallel.forward, self._hook)
        self._calls.call_after(parallel._pre_forward, lambda model, _: self._list(model))

    def remove(self) -> None:
        """Stop observing."""
        super().remove()
        self._hooks.remove()
        self._hooked.clear()
        self._listed.clear()

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

    def _list(self, model: Any) -> None:
        """Record which gradients the buckets of a model are for, after they were made and after they were rebuilt."""
        own, known = attributes_of(model), self._listed.get(id(model))
        reducer, rebuilt = own.get("reducer"), own.get("_has_rebuilt_buckets")
        if reducer is None or own.get("gradient_as_bucket_view") or torch.compiler.is_compiling():
            return
        if known is not None and known[0]() is reducer and known[1] == rebuilt:
            return
        owners = self._context.observed.owners()
        found = [(owners.get(id(parameter)), place) for parameter, place in places_in_buckets(reducer)]
        if any(owner is None for owner, _ in found):
            return  # its modules are not registered yet
        self._listed[id(model)] = ref(reducer), rebuilt
        kind = Identity.COMMUNICATION_BUFFER
        self._context.observed.see((kind, *owner, place) for owner, place in found if owner is not None)

    def _see(self, name_id: int, module_id: int, gradients: Any) -> None:
        """Record the gradients that a node is about to accumulate."""
        found = [one for one in gradients if is_tensor(one)]
        self._context.observed.see((Identity.GRADIENT, name_id, module_id, one) for one in found)
