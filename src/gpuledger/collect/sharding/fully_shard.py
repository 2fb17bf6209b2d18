"""Memory of ``fully_shard`` (FSDP2): gathered weights, shards of gradients, and buffers of collectives.

FSDP2 gathers, frees and reduces the parameters of one group in four methods of ``FSDPParamGroup``. They are observed in
place while steps are recorded. During a method, the thread's allocations carry the group's module and a flag. After it,
the addresses of the tensors that the group holds are recorded. No tensor is kept, and no property of the group is
called. Nothing is imported: a program that does not use FSDP2 is not observed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import ref

from gpuledger.collect.adapter.distributed_tensors import is_sharded
from gpuledger.collect.adapter.program_objects import attributes_of, grad_of, is_tensor, local_part, module_of_class
from gpuledger.collect.attribution.phases import OUTSIDE
from gpuledger.collect.attribution.tensor_observations import ObservedTensor
from gpuledger.collect.sharding.library_observer import LibraryObserver
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext, never, nothing
from gpuledger.model.accounts import Identity
from gpuledger.model.journal.journal import TagFlag

GROUP_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
"""Module of torch with the class ``FSDPParamGroup``."""

UNKNOWN_TORCH = (
    "Memory of fully_shard is attributed by its lifetime only, because this version of PyTorch is not supported: {}."
)


@dataclass(frozen=True)
class _Group:
    """What does not change of a group of parameters. Keeps none of them alive."""

    held: ref[Any]
    count: int
    module_id: int
    parameters: list[tuple[ref[Any], int, int]]
    """Each parameter, with the ids of its name and its module."""


class FullyShardedGroups(LibraryObserver):
    """Observes the groups of ``fully_shard``, between :meth:`install` and :meth:`remove`.

    Args:
        context: What it writes to.
    """

    module, unsupported = GROUP_MODULE, UNKNOWN_TORCH

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, lambda group: self._known(group).module_id))
        self._groups: dict[int, _Group] = {}
        context.observed.set_aside = self._shards

    def observe(self) -> None:
        """Observe the methods of a group that gather, free and reduce its parameters."""
        group = sys.modules[GROUP_MODULE].FSDPParamGroup
        gathers, reduces = int(TagFlag.COMMUNICATION), int(TagFlag.REDUCE_SCATTER)
        methods = (
            ("unshard", gathers, nothing, nothing, never),
            ("wait_for_unshard", gathers, nothing, self._see_gathered, _gathers_nothing),
            ("post_backward", reduces, self._see_gradients, self._see_reduced, never),
            ("reshard", gathers, nothing, self._see_resharded, never),
        )
        for name, flag, before, after, does_nothing in methods:
            self._calls.mark(getattr(group, name), flag, before, after, does_nothing=does_nothing)

    # -- what a group holds -----------------------------------------------------------------------------------------

    def _see_gathered(self, group: Any) -> None:
        """Record the gathered weights."""
        self._tell_resized(group)
        self._context.observed.see(self._of_parameters(group, Identity.GATHERED_WEIGHT, "all_gather_outputs"))

    def _see_gradients(self, group: Any) -> None:
        """Record the gradients of gathered weights, before they are reduced."""
        self._context.observed.see(self._gradients(group, "_unsharded_param"))

    def _see_reduced(self, group: Any) -> None:
        """Record the shards of the gradients, and gradients that wait for a later reduction or all-reduce."""
        self._tell_resized(group)
        waiting = self._of_parameters(group, Identity.GRADIENT, "unsharded_accumulated_grad")
        reduced = attributes_of(group).get("_partial_reduce_output")  # shards of several parameters in one tensor
        shared = (Identity.SHARDED_GRADIENT, -1, self._known(group).module_id, reduced)
        found = chain(self._gradients(group, "sharded_param"), waiting, [shared] if is_tensor(reduced) else ())
        self._context.observed.see(found)

    def _see_resharded(self, group: Any) -> None:
        """Record the weights that are kept between forward and backward on fewer ranks."""
        self._tell_resized(group)
        kept = "_sharded_post_forward_param_data"
        self._context.observed.see(self._of_parameters(group, Identity.GATHERED_WEIGHT, kept))

    def _tell_resized(self, group: Any) -> None:
        gathered = self._of_parameters(group, Identity.GATHERED_WEIGHT, "all_gather_outputs")
        self._context.resized(tensor for *_, tensor in gathered)

    def _of_parameters(self, group: Any, identity: Identity, attribute: str) -> Iterator[ObservedTensor]:
        """Yield the tensors in an attribute of a group's parameters."""
        for held, name_id, module_id in self._known(group).parameters:
            parameter = held()
            value = None if parameter is None else vars(parameter).get(attribute)
            if value is None:
                continue
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if is_tensor(tensor):
                    yield identity, name_id, module_id, tensor

    def _shards(self) -> Iterator[tuple[Any, int, int]]:
        """Yield the sharded parameters, with the ids of their names and modules. Whole ones can be in their places."""
        for known in list(self._groups.values()):
            group = known.held()
            if group is not None:
                shards = self._of_parameters(group, Identity.SHARDED_WEIGHT, "sharded_param")
                yield from ((shard, *place) for _, *place, shard in shards)

    def _gradients(self, group: Any, attribute: str) -> Iterator[ObservedTensor]:
        """Yield the gradients of the tensors in an attribute of a group's parameters."""
        for identity, name_id, module_id, tensor in self._of_parameters(group, Identity.GRADIENT, attribute):
            gradient = grad_of(tensor)
            if gradient is not None:
                is_part = is_sharded(gradient)
                part = local_part(gradient)  # a plain tensor, which takes less time to look at
                yield Identity.SHARDED_GRADIENT if is_part else identity, name_id, module_id, part

    def _known(self, group: Any) -> _Group:
        """Return the ids of a group. They are looked up once: a training step asks several times for each group."""
        known = self._groups.get(id(group))
        own = attributes_of(group)
        count = len(own.get("fsdp_params") or ())
        if known is None or known.held() is not group or known.count != count:
            known = _Group(ref(group), count, self._module_of(own), list(self._parameters(own)))
            if known.module_id != OUTSIDE and all(module_id >= 0 for *_, module_id in known.parameters):
                self._groups[id(group)] = known  # otherwise its modules are not registered yet
        return known

    def _module_of(self, group: dict[str, Any]) -> int:
        """Return the id of the module that ``fully_shard`` was called with."""
        known = self._context.registry.module_ids
        return next((known[id(one)] for one in group.get("modules") or () if id(one) in known), OUTSIDE)

    def _parameters(self, group: dict[str, Any]) -> Iterator[tuple[ref[Any], int, int]]:
        """Yield each parameter of a group, with the ids of its name and its module."""
        for parameter in group.get("fsdp_params") or ():
            where = attributes_of(attributes_of(parameter).get("_module_info"))
            module, name = where.get("module"), where.get("param_name")
            is_torchs = module_of_class(type(parameter)).startswith("torch.")
            if is_torchs and module is not None and isinstance(name, str):
                yield ref(parameter), *self._context.registry.named(module, name)


def _gathers_nothing(group: Any) -> bool:
    """Return whether no gather is in progress: the weights are still there from an earlier one."""
    return attributes_of(group).get("_all_gather_result", group) is None
