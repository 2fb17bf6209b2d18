"""Memory of DeepSpeed's ZeRO: shards of weights and gradients, gathered weights, and buckets of collectives.

From stage 3 on, each rank keeps a part of every parameter, and gathers the parameters of a module before it runs. In
stages 1 and 2, it keeps a part of the gradients, of the float32 weights and of the optimizer's state. The methods that
gather, reduce and update are observed in place while steps are recorded, and the tensors that the optimizer holds are
recorded. No tensor is kept. Nothing is imported: a program that does not use DeepSpeed is not observed. Tested with
DeepSpeed 0.19.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    grad_of,
    is_tensor,
    state_of,
    storage_address,
    tensors_in,
)
from gpuledger.collect.adapter.torch_entrances import own_function
from gpuledger.collect.attribution.phases import OUTSIDE
from gpuledger.collect.attribution.tensor_observations import ObservedTensor
from gpuledger.collect.sharding.layouts import FlatLayout
from gpuledger.collect.sharding.library_observer import LibraryObserver
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext
from gpuledger.model.accounts import Identity
from gpuledger.model.journal.journal import TagFlag

ZERO = "deepspeed.runtime.zero."
"""Package of DeepSpeed with the modules below."""
WHOLE_MODULE, WHOLE_CLASS = f"{ZERO}stage_1_and_2", "DeepSpeedZeroOptimizer"
"""Where the optimizer of stages 1 and 2 is."""
PARTS_MODULE, PARTS_CLASS = f"{ZERO}stage3", "DeepSpeedZeroOptimizer_Stage3"
"""Where the optimizer of stage 3 is."""
GATHERS_MODULE, GATHERS_CLASS = f"{ZERO}partitioned_param_coordinator", "PartitionedParameterCoordinator"
"""Where the gathers of parameters begin."""
WAITS_MODULE, WAITS_CLASSES = (
    f"{ZERO}partition_parameters",
    {
        "AllGatherCoalescedHandle": "params",
        "AllGatherHandle": "_AllGatherHandle__param",
    },
)
"""Where gathers end: classes, with the attribute for their parameters."""

UNKNOWN_DEEPSPEED = (
    "Memory of DeepSpeed's ZeRO is partly attributed by its lifetime only, because this version of DeepSpeed is not "
    "supported: {}."
)
MASTERS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups")
"""Attributes of an optimizer with this rank's part of the weights that it updates, in stage 3 and below."""
GRADIENTS = ("grad_partitions_flat_buffer", "averaged_gradients")
"""Attributes of an optimizer with this rank's part of the gradients."""
GROUPS = ("fp16_groups", "bit16_groups")
"""Attributes of an optimizer with its groups of parameters, in any dtype, in stage 3 and below."""


class ZeroPartitions(LibraryObserver):
    """Observes the optimizers of DeepSpeed's ZeRO, between :meth:`install` and :meth:`remove`.

    Args:
        context: What it writes to.
    """

    module, unsupported = WHOLE_MODULE, UNKNOWN_DEEPSPEED

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, self._module_of, _deepspeeds_own))
        self._unknown = ""
        """What cannot be observed, until the program is seen to use ZeRO: others import DeepSpeed as well."""
        self._optimizers = WeakIdentitySet()
        self._owners: dict[int, tuple[int, int]] = {}

    def observe(self) -> None:
        """Observe DeepSpeed's methods. The steps come first: they show whether the program uses ZeRO at all."""
        gathers, reduces = int(TagFlag.COMMUNICATION), int(TagFlag.REDUCE_SCATTER)
        whole = getattr(sys.modules[WHOLE_MODULE], WHOLE_CLASS)
        parts = getattr(sys.modules[PARTS_MODULE], PARTS_CLASS)
        for step in (whole.step, parts._pre_step):
            self._calls.call_before(step, self._see_optimizer)
        for optimizer in (whole, parts):
            self._calls.mark(
                optimizer.reduce_independent_p_g_buckets_and_remove_grads, reduces, self._see_gradient, place=1
            )
        self._calls.call_after(whole.setup_buckets, lambda optimizer, _: self._see_buckets(optimizer))
        coordinator = getattr(sys.modules[GATHERS_MODULE], GATHERS_CLASS)
        self._calls.mark(getattr(coordinator, f"_{GATHERS_CLASS}__all_gather_params_"), gathers, place=1)
        for name, attribute in WAITS_CLASSES.items():
            handle = getattr(sys.modules[WAITS_MODULE], name)
            self._calls.call_after(handle.wait, partial(self._see_gathered, attribute))

    def give_up(self, note: str) -> None:
        """Keep what could be observed, and the note for a program that uses ZeRO."""
        self._unknown = note

    def layouts(self) -> Iterator[FlatLayout]:
        """Yield the part that this rank has to hold: of each parameter of stage 3, or of each group below."""
        for optimizer in self._optimizers:
            masters = list(_tensors_of(optimizer, MASTERS))
            yield from self._layouts_of_groups(_groups(optimizer), masters)
            addresses = {storage_address(master) for master in masters}
            for parameter in _partitioned(one for group in _groups(optimizer) for one in group):
                held: dict[str, Any] = attributes_of(parameter)
                part, whole = held["ds_tensor"], held.get("ds_numel")
                if whole and masters:
                    elements = int(part.numel())
                    ranks = -(-int(whole) // max(elements, 1))
                    copy_item_bytes = 0 if storage_address(part) in addresses else int(masters[0].dtype.itemsize)
                    place = self._owner(parameter)
                    yield FlatLayout(*place, int(whole), elements, ranks, part, masters, copy_item_bytes)

    def _layouts_of_groups(self, groups: list[list[Any]], masters: list[Any]) -> Iterator[FlatLayout]:
        """Yield this rank's part of each group of whole parameters: the weights that it updates."""
        for group, master in zip(groups, masters, strict=False):
            whole, part = sum(int(one.numel()) for one in group), int(master.numel())
            if whole and part and not any(True for _ in _partitioned(group)):
                owners = [self._owner(one) for one in group]
                place = owners[0] if len(group) == 1 else (-1, self._context.registry.around([at for _, at in owners]))
                yield FlatLayout(*place, whole, part, -(-whole // part), master, [master])

    # -- what is held -----------------------------------------------------------------------------------------------

    def _see_gathered(self, attribute: str, handle: Any, _result: Any) -> None:
        """Record the weights that a gather has gathered."""
        gathered = tensors_in(attributes_of(handle).get(attribute))
        self._context.observed.see((Identity.GATHERED_WEIGHT, *self._owner(one), one) for one in gathered)

    def _see_gradient(self, parameter: Any) -> None:
        """Record the gradient of a whole parameter, before it is reduced."""
        gradient = grad_of(parameter)
        if gradient is not None:
            self._context.observed.see([(Identity.GRADIENT, *self._owner(parameter), gradient)])

    def _see_optimizer(self, optimizer: Any) -> None:
        """Record what an optimizer holds: this rank's parts, and the buckets of its collectives."""
        if self._unknown:
            self._context.note(self._unknown)
            self._unknown = ""
        self._optimizers.add(optimizer)
        self._owners = self._context.observed.owners()
        groups = _groups(optimizer)
        masters, parts = list(_tensors_of(optimizer, MASTERS)), [one for group in groups for one in _partitioned(group)]
        self._context.observed.parts.update([*masters, *parts])
        if masters and not parts:
            self._context.observed.updated_in_parts.update(one for group in groups for one in group)
        self._context.observed.of_frameworks.update(masters)
        shards = [attributes_of(one)["ds_tensor"] for one in parts]
        found = (
            self._of_parameters(Identity.SHARDED_WEIGHT, masters, groups),
            self._of_parameters(Identity.SHARDED_GRADIENT, _tensors_of(optimizer, GRADIENTS), groups),
            self._of_parameters(Identity.SHARDED_WEIGHT, shards, [[one] for one in parts]),
        )
        self._context.observed.see(chain(*found, self._of_states(optimizer, masters, groups)))
        self._see_buckets(optimizer)

    def _of_states(self, optimizer: Any, masters: list[Any], groups: list[list[Any]]) -> Iterator[ObservedTensor]:
        """Yield the state that the optimizer inside has of each master."""
        inside: Any = attributes_of(optimizer).get("optimizer")
        states = {id(master): values for master, values in state_of(inside)}
        for number, master in enumerate(masters):
            group = groups[number : number + 1] if len(groups) == len(masters) else groups
            for tensor in tensors_in(states.get(id(master))):
                yield from self._of_parameters(Identity.SHARDED_OPTIMIZER_STATE, [tensor], group)

    def _see_buckets(self, optimizer: Any) -> None:
        """Record the buffers in which gradients are collected before they are reduced."""
        buckets = _tensors_of(optimizer, ("ipg_buckets",))
        self._context.observed.see(self._of_parameters(Identity.COMMUNICATION_BUFFER, buckets, _groups(optimizer)))

    def _of_parameters(
        self, kind: Identity, tensors: Iterable[Any], groups: list[list[Any]]
    ) -> Iterator[ObservedTensor]:
        """Yield tensors that are each of one group of parameters, or that are all of the only one or of all groups.

        A tensor of several parameters is seen as of the first and of the last of them: its module is the one that has
        both.
        """
        tensors = list(tensors)
        if len(groups) != len(tensors):
            groups = [[one for group in groups for one in group]] * len(tensors)
        for tensor, group in zip(tensors, groups, strict=True):
            for one in {id(one): one for one in group[:1] + group[-1:]}.values():
                name_id, module_id = self._owner(one)
                yield kind, name_id if len(group) == 1 else -1, module_id, tensor

    def _owner(self, parameter: Any) -> tuple[int, int]:
        """Return the ids of name and module of a parameter."""
        if id(parameter) not in self._owners:
            self._owners = self._context.observed.owners()
        return self._owners.get(id(parameter), (-1, OUTSIDE))

    def _module_of(self, parameters: Any) -> int:
        """Return the id of the module that all of some parameters are of."""
        found = {self._owner(one)[1] for one in tensors_in(parameters)}
        return found.pop() if len(found) == 1 else OUTSIDE


def _deepspeeds_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside DeepSpeed's decorators, which keep it as ``func`` and do not say so.

    Raises:
        CannotInstrumentError: there is none with Python code.
    """
    found: Any = own_function(function)
    while found.__code__.co_freevars == ("func",):
        found = own_function(found.__closure__[0].cell_contents)
    return found  # type: ignore[no-any-return]


def _tensors_of(optimizer: Any, names: Iterable[str]) -> Iterator[Any]:
    """Yield the tensors in attributes of an optimizer: a tensor, or lists and dicts of tensors."""
    for name in names:
        value = attributes_of(optimizer).get(name)
        for one in value if isinstance(value, list) else (value,):
            yield from tensors_in(one)


def _groups(optimizer: Any) -> list[list[Any]]:
    """Return an optimizer's groups of parameters."""
    held = attributes_of(optimizer)
    return [list(tensors_in(group)) for name in GROUPS for group in held.get(name) or ()]


def _partitioned(parameters: Iterable[Any]) -> Iterator[Any]:
    """Yield the parameters of stage 3 of which each rank keeps a part."""
    return (one for one in parameters if is_tensor(attributes_of(one).get("ds_tensor")))
