"""Observe the storage addresses of weights, buffers, gradients, optimizer state and inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.distributed_tensors import is_sharded
from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.other_threads import gradients_of, take_all
from gpuledger.collect.adapter.program_objects import (
    SIMULATED_PARTS,
    attributes_of,
    device_number,
    device_of,
    grad_of,
    innermost_tensor,
    is_exactly,
    is_leaf,
    is_on_card,
    layout_of,
    local_part,
    parameter_groups,
    partition_of,
    place_in_memory,
    shape_of,
    state_of,
    storage_address,
    tensors_in,
    without_overrides,
    wrapped_tensors,
)
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.model.accounts import Identity
from gpuledger.model.journal.journal import Part

StoragePlace = tuple[int, int]

Row = tuple[int, int, int, int, int, int, int]
"""An observation as it is written: device, address, identity, ids of name and module, allocations and frees so far."""

ObservedTensor = tuple[Identity, int, int, Any]
"""What a tensor is, the ids of its name and of its module, and the tensor."""

_COLUMNS = ("device_idx", "address", "kind", "name_id", "module_id", "alloc_count", "free_count")
"""Columns of an observation."""

_SHARDED = {
    Identity.WEIGHT: Identity.SHARDED_WEIGHT,
    Identity.GRADIENT: Identity.SHARDED_GRADIENT,
    Identity.OPTIMIZER_STATE: Identity.SHARDED_OPTIMIZER_STATE,
}
"""Identity of a tensor -> its identity if the tensor is this rank's part of a larger one."""


class SeesLeaves(Protocol):
    """Records the gradients of tensors that are not registered; see :class:`..variables.leaves.LooseLeaves`."""

    def below(self, nodes: Sequence[Any]) -> Sequence[Any]:
        """Return the leaves below nodes of a graph that are not registered."""

    def backward_ended(self, leaves: Sequence[Any]) -> None:
        """Record the gradients of leaves after ``backward()``."""

    def differentiated(self, inputs: Any, result: Any) -> None:
        """Record what ``grad()`` has returned for its inputs."""


def storage_place(tensor: Any) -> StoragePlace | None:
    """Return ``(device_idx, address)`` of a tensor's storage; None if it has none of its own (sparse, meta)."""
    local = local_part(tensor)
    if layout_of(local) is not torch.strided:
        return None
    if not is_on_card(local) and device_of(local).type != "cpu":
        return None
    address = storage_address(local)
    return (device_number(local), address) if address else None


class TensorObservations:
    """Collects observed addresses. Each is stored with the allocator's event counts, which order it among the events.

    Args:
        registry: The modules and their tensors.
        counts: Returns ``device_idx -> (allocations, frees)`` of the devices that it is called with.
        place_of: Returns ``(device_idx, address)`` of a tensor's storage.
        names_of: Returns ``id`` -> name that the program has for tensors.
    """

    def __init__(
        self,
        registry: ModuleRegistry,
        counts: Callable[[Collection[int]], dict[int, tuple[int, int]]],
        place_of: Callable[[Any], StoragePlace | None] = storage_place,
        names_of: Callable[[Sequence[Any]], dict[int, str]] = lambda _: {},
    ) -> None:
        self.registry = registry
        self._names_of = names_of
        self.place_of = place_of
        self.on_gradients: Callable[[Sequence[tuple[int, int, Any, Any]]], None] = lambda _: None
        """Called with the ids of name and module, the parameter and the gradient of gradients that were seen."""
        self.on_input: Callable[[Any], object] = lambda _: None
        """Called with each tensor that an outermost module is called with."""
        self._counts = counts
        self._rows: deque[Row] = deque()
        self._parts: deque[tuple[int, ...]] = deque()
        """Observations of tensors that share memory with those of other modules, with their place in it and size."""
        self._last: dict[tuple[int, int, int], int] = {}
        self._state_sizes: dict[int, int] = {}
        self._stand_ins: dict[Any, tuple[int, int]] = {}
        """Place in memory -> ids of name and module, of the tensors in the places of parameters in the newest call."""
        self._weights_seen = 0
        self._updated: dict[int, int] = {}
        self._partitions: set[int] = set()
        self.parts = WeakIdentitySet()
        """Parameters that are this rank's part of larger ones, although they are plain tensors."""
        self.of_frameworks = WeakIdentitySet()
        """Parts that a framework updates. Its observer records their optimizer state, and their gradients are parts."""
        self.updated_in_parts = WeakIdentitySet()
        """Whole parameters of which each rank updates a part, which is another tensor."""
        self.set_aside: Callable[[], Iterable[tuple[Any, int, int]]] = lambda: ()
        """Returns parameters that others can stand in for now, with the ids of their names and modules."""

    def see_weights(self) -> None:
        """Record the addresses of parameters and buffers that are new or have moved."""
        seen = [
            (Identity.WEIGHT, number, name_id, module_id, reference())
            for number, (reference, name_id, module_id) in enumerate(self.registry.parameters)
        ]
        seen += [
            (Identity.BUFFER, number, name_id, module_id, reference())
            for number, (reference, name_id, module_id) in enumerate(self.registry.buffers)
        ]
        self._note(
            (kind, name_id, module_id, tensor, (kind, number, 0)) for kind, number, name_id, module_id, tensor in seen
        )

    def see_new_weights(self) -> None:
        """Record the addresses of parameters and buffers if any were registered since the last call."""
        count = len(self.registry.parameters) + len(self.registry.buffers)
        if count != self._weights_seen:
            self._weights_seen = count
            self.see_weights()

    def see_stand_ins(self) -> None:
        """Record the addresses of tensors that stand in for parameters, as in ``functional_call``.

        Those that were computed in this graph, as by another network or by an inner update, are no weights but
        activations. They have the parameter's name, and are of its module if no module has computed them.
        """
        with without_overrides():
            found = [
                (name_id, module_id, innermost_tensor(tensor))
                for reference, name_id, module_id in self.registry.parameters
                if (tensor := reference()) is not None and not issubclass(type(tensor), Parameter)
            ]
            self.see((Identity.WEIGHT if is_leaf(one[-1]) else Identity.HELD, *one) for one in found)
            if found:
                self._stand_ins = {place_in_memory(one[-1]): one[:2] for one in found}

    def see_gradients(self, *, of: Any = None, follow: bool = True) -> None:
        """Record the addresses of gradients: of all parameters, or of those that one optimizer updates.

        ``follow`` is whether they are those that a backward pass has computed just now.

        If another thread could write gradients, only those of modules that this thread alone has called are included.
        An optimizer that steps inside backward is included, because it is about to read its gradients itself.
        """
        mine = None if of is None else {id(one) for group in parameter_groups(of) for one in group}
        with without_overrides():
            known = [
                (name_id, module_id, parameter)
                for reference, name_id, module_id in self.registry.parameters
                if (parameter := reference()) is not None
                and (mine is None or id(parameter) in mine)
                and is_leaf(parameter)
            ]
            inside_own = of is not None and torch_private.is_in_backward()
            gradients = None if inside_own else gradients_of([parameter for *_, parameter in known])
            if gradients is None:
                known = [one for one in known if inside_own or self.registry.is_of_this_thread(one[1])]
                gradients = [grad_of(parameter) for *_, parameter in known]
        updated = {id(one) for one in self.of_frameworks}
        whole, part = Identity.GRADIENT, Identity.SHARDED_GRADIENT
        self._note(
            (part if id(parameter) in updated else whole, name_id, module_id, gradient, None)
            for (name_id, module_id, parameter), gradient in zip(known, gradients, strict=True)
        )
        if not follow:
            return
        with without_overrides(), torch._C._DisableTorchDispatch():
            self.on_gradients([(*one, gradient) for one, gradient in zip(known, gradients, strict=True)])

    def see_optimizer(self, optimizer: Any, *, again: bool = False) -> None:
        """Record the addresses of an optimizer's state if it has grown since the last call, or if ``again`` is True."""
        state = state_of(optimizer)
        if not again and self._state_sizes.get(id(optimizer)) == len(state):
            return
        self._state_sizes[id(optimizer)] = len(state)
        is_part = self.divides(optimizer)
        whole, part, parts = Identity.OPTIMIZER_STATE, Identity.SHARDED_OPTIMIZER_STATE, self.part_ids()
        owners, left_out = self.owners(), {id(one) for one in self.of_frameworks}
        self._note(
            (part if is_part or id(parameter) in parts else whole, *owners.get(id(parameter), (-1, -1)), tensor, None)
            for parameter, values in state
            if id(parameter) not in left_out
            for tensor in tensors_in(values)
        )

    def owners(self) -> dict[int, tuple[int, int]]:
        """Return ``id`` of each registered parameter, and of each that is set aside -> ids of its name and module."""
        found = {id(parameter): (name_id, module_id) for parameter, name_id, module_id in self.set_aside()}
        found.update((id(p), (n, m)) for r, n, m in self.registry.parameters if (p := r()) is not None)
        return found

    def owners_by_place(self) -> dict[Any, tuple[int, int]]:
        """Return the place in memory of each registered parameter -> ids of its name and of its module.

        Also of the tensors that stood in for parameters in the newest call that had some.
        """
        with without_overrides():
            found = self._stand_ins.copy()
            found |= {place_in_memory(p): (n, m) for r, n, m in self.registry.parameters if (p := r()) is not None}
        found.pop(None, None)
        return found

    def part_ids(self) -> set[int]:
        """Return the ids of :attr:`parts`."""
        return {id(one) for one in self.parts}

    def meet(self, optimizer: Any) -> None:
        """Record which optimizer keeps this rank's part of the state, if ``optimizer`` divides it among ranks."""
        inner = partition_of(optimizer)
        if inner is not None:
            self._partitions.update((id(inner), id(optimizer)))

    def divides(self, optimizer: Any) -> bool:
        """Return whether an optimizer that was met keeps this rank's part of the state of whole parameters."""
        return id(optimizer) in self._partitions

    def knows(self, optimizer: Any) -> bool:
        """Return whether all tensors that an optimizer updates are registered."""
        parameters = [parameter for group in parameter_groups(optimizer) for parameter in group]
        if self._updated.get(id(optimizer)) == len(parameters):
            return True
        self._updated[id(optimizer)] = len(parameters)
        return not self._loose(optimizer)

    def has_stand_ins(self) -> bool:
        """Return whether other tensors are in the places of a module's parameters, as inside ``functional_call``."""
        held = (reference() for reference, _, module_id in self.registry.parameters if module_id >= 0)
        return any(one is not None and not issubclass(type(one), Parameter) for one in held)

    def _loose(self, optimizer: Any) -> list[Any]:
        """Return the tensors that an optimizer updates and no module holds."""
        tensors = [one for group in parameter_groups(optimizer) for one in group if not self.registry.is_known(one)]
        held = self.owners() if tensors else {}  # a module can be registered while others stand in for its parameters
        return [one for one in tensors if id(one) not in held]

    def see_loose_parameters(self, optimizer: Any) -> None:
        """Register parameters that no module owns. Record their addresses and those of their gradients."""
        self.registry.add_loose_parameters(optimizer, self._names_of(self._loose(optimizer)), self.owners())
        self.see_new_weights()
        self.see_gradients(of=optimizer)

    def see_inputs(self, module_id: int, *arguments: Any) -> None:
        """Record the addresses of the tensors that an outermost module was called with."""
        with without_overrides():
            inputs = [innermost_tensor(tensor) for tensor in tensors_in(arguments)]
        self._note((Identity.INPUT, -1, module_id, tensor, None) for tensor in inputs)
        with without_overrides(), torch._C._DisableTorchDispatch():
            for tensor in inputs:
                self.on_input(tensor)

    def see(self, observed: Iterable[ObservedTensor]) -> None:
        """Record the addresses of tensors that a framework of sharded training holds."""
        self._note((*one, None) for one in observed)

    def row_of(self, kind: Identity, name_id: int, module_id: int, place: StoragePlace) -> Row:
        """Return an observation of this time, which :meth:`add_row` can add later."""
        counts = self._counts({place[0]}).get(place[0], (0, 0))
        return (*place, int(kind), name_id, module_id, *counts)

    def rows_at(self, kinds: Sequence[Identity], places: Sequence[StoragePlace]) -> list[Row | None]:
        """Return observations of this time without names; None on devices of which nothing is recorded."""
        counts = self._counts({device_idx for device_idx, _ in places})
        return [
            (*place, int(kind), -1, -1, *counts[place[0]]) if place[0] in counts else None
            for kind, place in zip(kinds, places, strict=True)
        ]

    def add_row(self, row: Row) -> None:
        """Add an observation."""
        self._rows.append(row)

    def _note(self, seen: Iterable[tuple[Identity, int, int, Any, tuple[int, int, int] | None]]) -> None:
        with without_overrides(), torch._C._DisableTorchDispatch():
            self._note_places(seen)

    def _note_places(self, seen: Iterable[tuple[Identity, int, int, Any, tuple[int, int, int] | None]]) -> None:
        place_of, found = self.place_of, []
        for kind, name_id, module_id, whole, key in seen:
            if whole is None:
                continue
            for tensor in _dense(whole):
                place = place_of(tensor)
                if place is not None:
                    found.append((kind, name_id, module_id, tensor, key, place))
        counts = self._counts({place[0] for *_, place in found}) if found else {}  # the recorder learned of some above
        shared = _shared_places((place, module_id) for _, _, module_id, _, _, place in found)
        for kind, name_id, module_id, tensor, key, place in found:
            if place[0] not in counts:
                continue
            if key is not None:
                if self._last.get(key) == place[1]:
                    continue
                self._last[key] = place[1]
            if kind in _SHARDED and is_sharded(tensor):
                kind = _SHARDED[kind]
            row = (*place, int(kind), name_id, module_id, *counts[place[0]])
            self._rows.append(row)
            if place in shared and (extent := _extent(tensor)) is not None:
                self._parts.append((*row, *extent))

    def drain(self, part: Part) -> None:
        """Write the observations since the last drain into ``part``."""
        rows, parts = take_all(self._rows), take_all(self._parts)
        if rows:
            part.add("identities", **dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True)))
        if parts:
            names = (*_COLUMNS, "offset_bytes", "bytes")
            part.add("storage_parts", **dict(zip(names, zip(*parts, strict=True), strict=True)))


def _dense(tensor: Any) -> tuple[Any, ...]:
    """Return the dense tensors of a tensor: itself, those inside a wrapper, or indices and values of a sparse one."""
    if is_exactly(tensor, Tensor, Parameter) and layout_of(tensor) is torch.strided:
        return (tensor,)
    inner = wrapped_tensors(tensor)
    if inner:
        return tuple(inner)
    if layout_of(tensor) is torch.strided:
        return (tensor,)
    simulated = attributes_of(tensor).get(SIMULATED_PARTS)
    if simulated is not None:
        return tuple(simulated)
    return (tensor._indices(), tensor._values()) if layout_of(tensor) is torch.sparse_coo else (tensor,)


def _shared_places(seen: Iterable[tuple[StoragePlace, int]]) -> set[StoragePlace]:
    """Return the places with tensors of several modules."""
    first: dict[StoragePlace, int] = {}
    return {place for place, module_id in seen if first.setdefault(place, module_id) != module_id}


def _extent(tensor: Any) -> tuple[int, int] | None:
    """Return where a tensor begins in its storage and how far it reaches, in bytes; None if it is empty."""
    local = local_part(tensor)
    sizes = shape_of(local)
    if not all(sizes):
        return None
    item_bytes = int(local.dtype.itemsize)
    elements = 1 + sum((size - 1) * stride for size, stride in zip(sizes, local.stride(), strict=True))
    return int(local.storage_offset()) * item_bytes, int(elements) * item_bytes
