"""What a program that updates weights by itself carries from one update to the next: its own optimizer state.

The operators that run outside of modules, backward passes and optimizers are followed, element by element: a tensor
contains a gradient if it was computed from one of the same number of elements. It contains a part of a gradient if it
was computed from one with another number: a mean over rows, or all gradients in one buffer. Three facts follow.

- A tensor is a weight if it is written with its own gradient, or if the next one that is differentiated was computed
  from both.
- A tensor is optimizer state of a weight if it has kept a gradient, or a part of one, from before the last update of
  the weight, and the next update reads it.
- Other tensors are neither: a copy of weights (an exponential moving average, a target network) contains no gradient,
  the sum of gradients of several batches is cleared after each update, and a buffer for intermediate results is
  overwritten before it is read.

Code of TorchInductor runs no operators; see :mod:`.graph_updates`.

Hooks for complete gradients update weights inside of a backward pass. Each is an update of one weight.

A tensor that contains gradients at the end of the next backward pass, and is no state, belongs to no batch: what is
left of an update in a variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpuledger.collect.adapter.compiler.graph_operations import OVERWRITES
from gpuledger.collect.adapter.program_objects import dimensions_of, grad_of, is_tensor, known_sizes, storage_address
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.tensor_observations import Row, StoragePlace, TensorObservations
from gpuledger.model.accounts import Identity, Phase

MOST_PARTS = 16
"""Number of gradients in one tensor from which on it is not followed: it is a mixture, and no state of one weight."""

MOST_WEIGHTS = 1024
"""Number of gradients of which one tensor can contain parts: a buffer for all weights has those of each."""

_OLD = -1
"""Stands for the number of updates of a gradient from before the last one."""

_Found = tuple[int, int, Any, Any]
"""Ids of name and module, a leaf and its gradient."""

_NOTHING: frozenset[Any] = frozenset()
_NO_NAME = (-1, -1)
"""Ids of name and module of what is of several weights, or of none."""


@dataclass(eq=False, slots=True)
class _Weight:
    """A leaf of a graph, through all its updates. ``row`` is its observation, until it is known to be a weight."""

    place: StoragePlace
    name: tuple[int, int]
    elements: int
    row: Row | None
    updates: int = 0


@dataclass(eq=False, slots=True)
class _Storage:
    """A storage that contains gradients. ``number`` orders them by age. ``row``: its observation when it was read.

    ``is_left``: whether it was seen at the end of a later backward pass.
    """

    number: int
    row: Row | None = None
    is_left: bool = False


_Gradients = frozenset[tuple[_Weight, int]]
"""Weights, and how many updates each had when its gradient was computed."""
_Carried = frozenset[tuple[_Storage, _Weight]]
"""Storages that were read with a gradient from before the last update of a weight, and this weight."""


@dataclass(frozen=True, slots=True)
class _Content:
    """What the tensor in a storage was computed from."""

    storage: _Storage
    gradients: _Gradients
    carried: _Carried
    parts: _Gradients


class Value(NamedTuple):
    """A tensor, by the address of its storage and its number of elements. ``tensor`` is None inside of compiled code.

    There, it has a negative number for an address.
    """

    address: int
    elements: int
    tensor: Tensor | None


@dataclass(frozen=True, slots=True)
class _Writes:
    """Positions of the arguments that an operator writes, and whether it reads them, too."""

    positions: tuple[int, ...]
    has_out: bool
    overwrites: bool


class WeightUpdates:
    """Follows gradients through a program's own updates of its weights.

    Args:
        observed: Records what tensors are.
        phases: The current phase, and the modules that are running.
    """

    def __init__(self, observed: TensorObservations, phases: Phases) -> None:
        self.on_kept: Callable[[Tensor], None] = lambda _: None
        """Called with each tensor that is followed from now on. Its end has to be told: :meth:`forget`."""
        self.address_of: Callable[[Tensor], int] = storage_address
        """Returns the address of a tensor's storage; 0 if it has none."""
        self._observed = observed
        self._phases = phases
        self._weights: dict[int, _Weight] = {}
        self._contents: dict[int, _Content] = {}
        self._states: set[_Storage] = set()
        self._writes: dict[Any, _Writes | None] = {}
        self._next = self._recent = 0
        self._hooked: tuple[int, int, Any] | None = None
        """Ids of name and module, and the leaf, whose gradient is accumulated now, if hooks follow; None after it was
        seen. The gradient itself is not held: autograd copies it if anything else holds it."""
        self._hook_thread = 0
        """Thread in which such hooks can run now; 0 if they cannot."""

    @property
    def is_on(self) -> bool:
        """Return whether operators are followed: between backward and the next call of a module, or in a hook."""
        phases = self._phases
        is_own = phases.phase not in (Phase.BACKWARD, Phase.OPTIMIZER)
        if phases.phase == Phase.BACKWARD and self._hook_thread:
            is_own = self._hook_thread == get_ident()
        state = phases.threads
        return bool(self._contents) and is_own and len(state.stack) <= state.step_depth

    def gradients_seen(self, found: Iterable[_Found], *, registered: bool) -> None:
        """Record gradients of leaves after a backward pass: ids of name and module, leaf and gradient.

        Args:
            found: The leaves and their gradients.
            registered: Whether the leaves are known to be weights.
        """
        self._note_left()
        self._recent = self._next
        for one in found:
            self._gradient_seen(one, registered=registered)

    def _gradient_seen(self, found: _Found, *, registered: bool) -> None:
        name_id, module_id, leaf, gradient = found
        if gradient is None:
            return
        place, place_of_gradient = self._observed.place_of(leaf), self._observed.place_of(gradient)
        if place is None or place_of_gradient is None or place == place_of_gradient:
            return
        weight = self._weights.get(place[1]) or self._renewed(leaf, place, registered)
        if weight is None:
            row = None if registered else self._observed.row_of(Identity.LEAF, name_id, module_id, place)
            weight = self._weights[place[1]] = _Weight(place, (name_id, module_id), _elements(leaf), row)
        self.forget(place_of_gradient[1])
        self._keep(gradient, place_of_gradient[1], frozenset({(weight, weight.updates)}), _NOTHING, _NOTHING)

    def hook_begins(self, found: _Found, *, registered: bool) -> None:
        """Record what is added to a gradient now, and follow operators in this thread until :meth:`hook_ended`."""
        self._recent = self._next
        with torch._C._DisableTorchDispatch():
            self._gradient_seen(found, registered=registered)
        self._hooked, self._hook_thread = found[:3], get_ident()

    def hook_ended(self) -> None:
        """Follow no more operators inside of a backward pass."""
        self._hooked, self._hook_thread = None, 0

    def see(self, operator: Any, results: Any, arguments: Sequence[Any]) -> None:
        """Follow an operator that has ended."""
        if self._hooked is not None:
            self._see_accumulated(self._hooked)
        writes = self._writes_of(operator)
        if writes is None:
            return
        read = [self.values_of(one) for one in arguments]
        written = [read[at] for at in writes.positions if at < len(read)] or [self.values_of(results)]
        if writes.overwrites:
            read = [one for at, one in enumerate(read) if at not in writes.positions]
        self.follow(read, written, is_new=not (writes.positions or writes.has_out))

    def _see_accumulated(self, found: tuple[int, int, Any]) -> None:
        """Record the gradient that hooks get, when they run their first operator."""
        name_id, module_id, leaf = found
        gradient = grad_of(leaf)
        place = None if gradient is None else self._observed.place_of(gradient)
        if place is not None:
            self._hooked = None
            self._observed.add_row(self._observed.row_of(Identity.LEAF_GRADIENT, name_id, module_id, place))

    def values_of(self, value: Any) -> list[Value]:
        """Return the tensors of an argument or a result."""
        return [Value(self.address_of(one), _elements(one), one) for one in _tensors(value)]

    def follow(self, read: Sequence[list[Value]], written: Sequence[list[Value]], *, is_new: bool) -> None:
        """Record what an operator has written. ``is_new``: what has the address of an argument is a view."""
        count = max(map(len, written))
        for at in range(count):
            beside = _beside(read, at, count)
            for targets in written:
                if at < len(targets):
                    self._write(targets[at], beside, is_new=is_new)

    def forget(self, address: int) -> None:
        """Forget a storage that was freed."""
        self._weights.pop(address, None)
        self._contents.pop(address, None)

    def _writes_of(self, operator: Any) -> _Writes | None:
        if operator not in self._writes:
            self._writes[operator] = _writes_of(operator)
        return self._writes[operator]

    def _write(self, target: Value, read: list[Value], *, is_new: bool) -> None:
        """Record what a tensor contains that an operator has written."""
        address, elements, _ = target
        if not address or elements < 0:
            return
        gradients: _Gradients = _NOTHING
        carried: _Carried = _NOTHING
        parts: _Gradients = _NOTHING
        for source, count, _ in read:
            if is_new and source == address:
                return  # a view
            content = self._contents.get(source)
            if content is None:
                continue
            carried |= content.carried | self._read(content, source)
            if count == elements:
                gradients |= content.gradients
                parts = _merged(parts, content.parts)
            else:
                parts = _merged(parts, content.gradients or content.parts)
        if len(gradients) > MOST_PARTS:
            gradients = _NOTHING
        weight = self._weights.get(address)
        if weight is not None:
            self._updated(weight, gradients | parts, carried)
        elif gradients or parts:
            self._keep(target.tensor, address, gradients, carried, parts)
        else:
            self._contents.pop(address, None)

    def _read(self, content: _Content, address: int) -> _Carried:
        """Return what a storage that is read carries from before the last update."""
        storage = content.storage
        if storage.number >= self._recent:  # an intermediate result of this update
            return _NOTHING
        contained = content.gradients or content.parts
        weights = {weight for weight, updates in contained if updates < weight.updates}
        if weights and storage.row is None:
            first = next(iter(weights))
            name = first.name if len(weights) == 1 else _NO_NAME
            storage.row = self._observed.row_of(Identity.OPTIMIZER_STATE, *name, (first.place[0], address))
        return frozenset((storage, weight) for weight in weights)

    def _note_left(self) -> None:
        """Record what earlier updates have left, before the gradients of another backward pass are known."""
        for address, content in self._contents.copy().items():  # another thread can add and forget meanwhile
            storage = content.storage
            if not storage.is_left:
                storage.is_left = True
                weight, _ = next(iter(content.gradients or content.parts))
                place = (weight.place[0], address)
                self._observed.add_row(self._observed.row_of(Identity.UPDATE, *_NO_NAME, place))

    def _keep(
        self, tensor: Tensor | None, address: int, gradients: _Gradients, carried: _Carried, parts: _Gradients
    ) -> None:
        known = self._contents.get(address)
        if known is None and tensor is not None:
            self.on_kept(tensor)
        storage = known.storage if known else _Storage(self._next)
        self._contents[address] = _Content(storage, gradients, carried, parts)
        self._next += 1

    def _renewed(self, leaf: Any, place: StoragePlace, registered: bool) -> _Weight | None:
        """Return the weight that a leaf replaces, if it was computed from it and its gradient."""
        content = self._contents.get(place[1])
        if content is None:
            return None
        elements = _elements(leaf)
        before = [one for one, updates in content.gradients if updates == one.updates and one.elements == elements]
        if len(before) != 1:
            return None
        weight = before[0]
        self._updated(weight, content.gradients, content.carried)
        if self._weights.get(weight.place[1]) is weight:
            self._weights.pop(weight.place[1], None)
        self.forget(place[1])
        weight.place = place
        self._weights[place[1]] = weight
        if not registered:
            self._observed.add_row(self._observed.row_of(Identity.LEAF, *weight.name, place))
        return weight

    def _updated(self, weight: _Weight, gradients: _Gradients, carried: _Carried) -> None:
        """Record that a weight gets a value that contains gradients, if its own newest one is among them."""
        if (weight, weight.updates) not in gradients:
            return
        for storage, of in carried:
            if of is weight and storage.row is not None and storage not in self._states:
                self._states.add(storage)
                self._observed.add_row(storage.row)
        weight.updates += 1
        if weight.row is not None:
            self._observed.add_row(weight.row)
            weight.row = None


def _beside(read: Sequence[list[Value]], at: int, count: int) -> list[Value]:
    """Return the tensors that one of ``count`` results was computed from: of lists, those at its position.

    A single result is computed from all tensors of a list, as that of ``cat``.
    """
    found: list[Value] = []
    for one in read:
        found += [one[at]] if len(one) == count else one if 1 in (len(one), count) else []
    return found


def _merged(parts: _Gradients, others: _Gradients) -> _Gradients:
    """Return parts of gradients together. All updates before the last one count as one."""
    if not parts or not others or others is parts:
        return parts or others
    found = frozenset((weight, updates if updates == weight.updates else _OLD) for weight, updates in parts | others)
    return found if len(found) <= 2 * MOST_WEIGHTS else _NOTHING


def _writes_of(operator: Any) -> _Writes | None:
    """Return what an operator writes; None for one without a schema."""
    schema = getattr(operator, "_schema", None)
    if schema is None:
        return None
    written = [
        (at, one) for at, one in enumerate(schema.arguments) if one.alias_info is not None and one.alias_info.is_write
    ]
    name = schema.name.rpartition("::")[2]
    return _Writes(
        positions=tuple(at for at, one in written if not one.kwarg_only),
        has_out=any(one.kwarg_only for _, one in written),
        overwrites=name in OVERWRITES or torch.Tag.nondeterministic_seeded in operator.tags,
    )


def _elements(tensor: Tensor) -> int:
    """Return a tensor's number of elements; -1 for a nested one, and for one with lengths that are no numbers."""
    sizes = known_sizes(tensor)
    return prod(sizes) if len(sizes) == dimensions_of(tensor) else -1


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors of one argument or result."""
    if is_tensor(value):
        return [value]
    return [one for one in value if is_tensor(one)] if isinstance(value, (list, tuple)) else []
