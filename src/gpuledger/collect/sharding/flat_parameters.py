"""Memory of ``FullyShardedDataParallel`` (FSDP1): gathered weights, shards of gradients, and buffers of collectives.

FSDP1 keeps the parameters of a module in one flat parameter per handle, and resizes storages instead of allocating
tensors. The methods that gather and reduce it are observed in place while steps are recorded, and the tensors that it
holds are recorded. No tensor is kept. Nothing is imported: a program that does not use FSDP1 is not observed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.program_objects import attributes_of, grad_of, is_tensor
from gpuledger.collect.attribution.phases import OUTSIDE
from gpuledger.collect.attribution.tensor_observations import ObservedTensor
from gpuledger.collect.sharding.layouts import FlatLayout
from gpuledger.collect.sharding.library_observer import LibraryObserver
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext
from gpuledger.model.accounts import Identity
from gpuledger.model.journal.journal import TagFlag

HANDLE_MODULE = "torch.distributed.fsdp._flat_param"
"""Module of torch with the class ``FlatParamHandle``."""
RUNTIME_MODULE = "torch.distributed.fsdp._runtime_utils"
"""Module of torch with the functions that reduce gradients."""
STORAGE_MODULE = "torch.distributed.utils"
"""Module of torch with the functions that resize storages."""

UNKNOWN_TORCH = (
    "Memory of FullyShardedDataParallel is attributed by its lifetime only, because this version of PyTorch is not "
    "supported: {}."
)
NAME = "_flat_param"
"""Name of a flat parameter in its module."""
SIZES = ("_unpadded_unsharded_size", "_sharded_size")
"""Attributes of a flat parameter: the whole shape without padding, and the shape of a part."""


class FlatParameters(LibraryObserver):
    """Observes the handles of ``FullyShardedDataParallel``, between :meth:`install` and :meth:`remove`.

    Args:
        context: What it writes to.
    """

    module, unsupported = RUNTIME_MODULE, UNKNOWN_TORCH

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, self._module_of))
        self._handles = WeakIdentitySet()

    def observe(self) -> None:
        """Observe what gathers, frees and reduces flat parameters."""
        runtime, storages = sys.modules[RUNTIME_MODULE], sys.modules[STORAGE_MODULE]
        handle = sys.modules[HANDLE_MODULE].FlatParamHandle
        gathers, reduces = int(TagFlag.COMMUNICATION), int(TagFlag.REDUCE_SCATTER)
        for name in ("_alloc_storage", "_free_storage"):
            self._calls.call_after(getattr(storages, name), lambda tensor, _: self._context.resized([tensor]))
        self._calls.mark(handle.pre_unshard, gathers, self._see_shard)
        self._calls.mark(handle.unshard, gathers, after=self._see_gathered)
        self._calls.mark(runtime._post_backward_reshard, gathers, self._see_gradient, place=1)
        self._calls.mark(runtime._reduce_grad, reduces, self._see_gradient, self._see_reduced, place=1)
        handles = [attributes_of(module).get("_handle") for module in self._context.registry.live_modules()]
        whole = [tensor for handle in handles if handle is not None for tensor in self._whole(handle)]
        if whole:
            self._context.resized(whole)

    def layouts(self) -> Iterator[FlatLayout]:
        """Yield the part of each flat parameter that this rank has to hold."""
        for handle in self._handles:
            whole, part = (attributes_of(self._flat(handle)).get(name) for name in SIZES)
            ranks, tensor = attributes_of(handle).get("world_size"), self._shard(handle)
            if whole is not None and part is not None and ranks and tensor is not None:
                flat = self._flat(handle)
                views = attributes_of(flat).get("_params")
                updated = [flat, *(views if isinstance(views, list) else ())]
                yield FlatLayout(
                    *self._place(handle), int(whole.numel()), int(part.numel()), int(ranks), tensor, updated
                )

    # -- what a handle holds ----------------------------------------------------------------------------------------

    def _see_shard(self, handle: Any) -> None:
        """Record the shard of a flat parameter, and that the parameters in it are parts."""
        if self._is_whole(handle):
            return
        self._handles.add(handle)
        flat = self._flat(handle)
        views = attributes_of(flat).get("_params")
        self._context.observed.parts.update([flat, *(views if isinstance(views, list) else ())])
        self._see(handle, Identity.SHARDED_WEIGHT, self._shard(handle))

    def _see_gathered(self, handle: Any) -> None:
        """Record the gathered weights."""
        if not self._is_whole(handle):
            for tensor in self._whole(handle):
                self._see(handle, Identity.GATHERED_WEIGHT, tensor)

    def _see_gradient(self, handle: Any) -> None:
        """Record the gradient of the gathered weights, before it is cast or reduced."""
        self._see(handle, Identity.GRADIENT, grad_of(self._flat(handle)))

    def _see_reduced(self, handle: Any) -> None:
        """Record the shard of the gradient."""
        held = attributes_of(self._flat(handle))
        for name in ("_saved_grad_shard", "_cpu_grad"):
            self._see(handle, Identity.SHARDED_GRADIENT, held.get(name))

    def _see(self, handle: Any, identity: Identity, tensor: Any) -> None:
        if is_tensor(tensor):
            found: ObservedTensor = (identity, *self._place(handle), tensor)
            self._context.observed.see([found])

    # -- parts of a handle ------------------------------------------------------------------------------------------

    def _flat(self, handle: Any) -> Any:
        return attributes_of(handle).get("flat_param")

    def _shard(self, handle: Any) -> Any:
        """Return the flat parameter's part of this rank; None before the first forward."""
        return attributes_of(self._flat(handle)).get("_local_shard")

    def _whole(self, handle: Any) -> list[Any]:
        """Return the tensors into which the flat parameter is gathered. They can have no memory now."""
        held = attributes_of(self._flat(handle))
        found = (held.get(name) for name in ("_full_param_padded", "_full_prec_full_param_padded"))
        return [one for one in found if is_tensor(one)]

    def _is_whole(self, handle: Any) -> bool:
        """Return whether every rank holds the whole parameter."""
        return getattr(attributes_of(handle).get("_sharding_strategy"), "name", "NO_SHARD") == "NO_SHARD"

    def _module_of(self, handle: Any) -> int:
        """Return the id of the module that was wrapped."""
        return self._context.registry.module_ids.get(id(attributes_of(handle).get("_fully_sharded_module")), OUTSIDE)

    def _place(self, handle: Any) -> tuple[int, int]:
        """Return the ids of name and module of a flat parameter."""
        module = attributes_of(handle).get("_fully_sharded_module")
        return (-1, OUTSIDE) if module is None else self._context.registry.named(module, NAME)
