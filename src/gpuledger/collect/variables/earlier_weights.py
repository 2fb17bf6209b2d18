"""Weights and buffers that a module had before its first call, when their addresses are recorded for the first time.

``model.half()``, ``load_state_dict(assign=True)`` and ``module.weight = nn.Parameter(...)`` replace them in the setup.
For a while, both tensors exist. A module that ``torch.load`` or ``copy.deepcopy`` makes is perhaps never called: the
program can take its weights only.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Set
from functools import partial
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import dynamo, torch_entrances
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, is_observed_for_good, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.other_threads import take_all
from gpuledger.collect.adapter.program_objects import (
    buffers_of,
    is_tensor,
    kind_name,
    local_tensors,
    parameters_of,
    without_overrides,
)
from gpuledger.collect.attribution.tensor_observations import Row, StoragePlace, TensorObservations
from gpuledger.model.accounts import Identity
from gpuledger.model.journal.journal import Part

_COMPILED = (torch_entrances.register_parameter, torch_entrances.register_buffer)
"""What ``torch.compile`` traces where a module's tensor is replaced. Its code then depends on theirs."""


class EarlierWeights:
    """Records where tensors are when a module registers them, before and after it converts them, and in a copy of one.

    Modules are in no outermost module then, so that the names of their tensors follow later.

    Args:
        observed: Gets the addresses.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, observed: TensorObservations, guard: Guard) -> None:
        self._observed, self._guard = observed, guard
        self._unnamed: deque[tuple[weakref.ref[nn.Module], str, str, Row]] = deque()
        """Module, its class and the tensor's name, and an observation without ids of name and module."""
        self._observations: list[Observation] = []
        self._known_tensors = 0

    def install(self) -> None:
        """Start recording, as far as torch's functions are those of a supported version."""
        absorbs = self._guard.absorbs
        found: tuple[tuple[Callable[[], Callable[..., Any]], Observer], ...] = (
            (
                torch_entrances.register_parameter,
                Observer(partial(self._registers, Identity.EARLIER_WEIGHT), absorbs=absorbs),
            ),
            (
                torch_entrances.register_buffer,
                Observer(partial(self._registers, Identity.EARLIER_BUFFER), absorbs=absorbs),
            ),
            (torch_entrances.convert_module, Observer(self._converts, self._has_changed, absorbs=absorbs)),
            (torch_entrances.restore_module, Observer(self._restores, self._has_changed, absorbs=absorbs)),
        )
        for entrance, observer in found:
            try:
                function = entrance()
                if entrance in _COMPILED and dynamo.compiled_frames() and not is_observed_for_good(function):
                    continue  # compiled code that replaces a buffer would be compiled again
                self._observations.append(Observation(function, observer))
            except CannotInstrumentError:
                continue  # weights are known from the first call of their module on

    def remove(self) -> None:
        """Stop recording. What has no name yet gets it in the next :meth:`drain`."""
        remove_all(self._observations)

    def name_known(self) -> None:
        """Name the tensors of modules that were registered since the last call, while these modules exist."""
        registry = self._observed.registry
        count = len(registry.parameters) + len(registry.buffers)
        if count != self._known_tensors:
            self._known_tensors = count
            self._name()

    def drain(self, part: Part) -> None:
        """Hand on what can be named. Must come before that of the observed addresses, which write it to ``part``."""
        self._name()

    def _name(self) -> None:
        """Name tensors. While recording, those of a module wait that exists and is not registered yet.

        If the module was freed before, its tensors have the name of its class.
        """
        registry = self._observed.registry
        for reference, kind, name, row in take_all(self._unnamed):
            module = reference()
            name_id, module_id = (-1, -1) if module is None else registry.named(module, name)
            if module_id < 0 and module is not None and self._observations:
                self._unnamed.append((reference, kind, name, row))
                continue
            if module_id < 0:
                name_id = registry.name_id(f"{kind}.{name}")
            self._observed.add_row((*row[:3], name_id, module_id, *row[5:]))

    def _registers(self, what: Identity, module: nn.Module, name: Any, tensor: Any, *_: Any) -> None:
        if type(name) is str and is_tensor(tensor):
            self._see(module, [(what, name, tensor)])

    def _converts(self, module: Any, *_: Any) -> tuple[nn.Module, Set[StoragePlace]] | None:
        if not issubclass(type(module), nn.Module):  # a tool that has replaced the function can have other parameters
            return None
        return module, self._see_all(module)

    def _restores(self, module: nn.Module, *_: Any) -> tuple[nn.Module, Set[StoragePlace]]:
        return module, frozenset()

    def _has_changed(self, changed: tuple[nn.Module, Set[StoragePlace]], _result: Any) -> None:
        module, before = changed
        self._see_all(module, before)

    def _see_all(self, module: nn.Module, before: Set[StoragePlace] = frozenset()) -> Set[StoragePlace]:
        """Record where the tensors of a module are, but not those that were there before. Return where all are."""
        tensors = [
            *((Identity.EARLIER_WEIGHT, *held) for held in parameters_of(module)),
            *((Identity.EARLIER_BUFFER, *held) for held in buffers_of(module)),
        ]
        return self._see(module, tensors, before)

    def _see(
        self, module: nn.Module, tensors: list[tuple[Identity, str, Any]], before: Set[StoragePlace] = frozenset()
    ) -> Set[StoragePlace]:
        if torch_entrances.is_tracing():
            return frozenset()
        with without_overrides(), torch._C._DisableTorchDispatch():
            found: list[tuple[Identity, str, StoragePlace]] = [
                (what, name, place)
                for what, name, tensor in tensors
                for one in local_tensors(tensor)
                if (place := self._observed.place_of(one)) is not None and place not in before
            ]
            if not found:
                return before
            reference, kind = weakref.ref(module), kind_name(module)
            rows = self._observed.rows_at([what for what, *_ in found], [place for *_, place in found])
            self._unnamed.extend(
                (reference, kind, name, row) for (_, name, _), row in zip(found, rows, strict=True) if row is not None
            )
            return {place for *_, place in found}
