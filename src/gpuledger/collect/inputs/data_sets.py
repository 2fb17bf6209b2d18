"""Find the data sets that a program takes its batches from.

A program with its data in one tensor takes a batch out of it in each step: ``data[indices]``, or a stack of slices. The
operators outside of modules are followed, except those in a backward pass and in an optimizer. A tensor is such a data
set if a part of it was read there, and one of two things was computed from this part: an input of an outermost module,
or a tensor with a graph, as a loss of outputs and targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gpuledger.collect.adapter.program_objects import (
    dimensions_of,
    is_tensor,
    known_sizes,
    layout_of,
    requires_grad,
    storage_of,
)
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.recorder import FollowsOperators
from gpuledger.collect.attribution.tensor_observations import Row, TensorObservations
from gpuledger.collect.inputs.beside import Beside
from gpuledger.model.accounts import Identity, Phase

_INDEXES = ("aten::index", "aten::index_select", "aten::gather", "aten::take")
"""Operators that read a part of their first argument."""

MOST_SOURCES = 16
"""Maximum number of data sets that one tensor is computed from."""

_NO_ROWS: frozenset[Row] = frozenset()


class DataSets(Beside):
    """Sees operators, and records the tensors that batches are taken from as inputs.

    Args:
        observed: Records what tensors are.
        phases: The current phase, and the modules that are running.
        beside: Follows operators, too. It is shown all that it asks for.
    """

    def __init__(self, observed: TensorObservations, phases: Phases, beside: FollowsOperators) -> None:
        super().__init__(beside)
        self._observed, self._phases = observed, phases
        self._read: dict[int, Row] = {}
        """Address of a storage of which a part was read -> its observation as an input."""
        self._sources: dict[int, frozenset[Row]] = {}
        """Address of a storage that was computed from such parts -> these observations."""
        self._recorded: set[Row] = set()

    @property
    def follows_itself(self) -> bool:
        """Return whether operators are followed now, apart from what the other object asks for."""
        phases = self._phases
        if phases.phase in (Phase.SETUP, Phase.BACKWARD, Phase.OPTIMIZER):
            return False
        state = phases.threads
        return len(state.stack) <= state.step_depth

    def forget_itself(self, address: int) -> None:
        """Forget a storage that was freed."""
        self._read.pop(address, None)
        self._sources.pop(address, None)

    def taken(self, tensor: Any) -> bool:
        """Return whether an input was taken out of data sets. Record these."""
        sources = self._sources.get(self.address_of(tensor), _NO_ROWS)
        self._record(sources)
        return bool(sources)

    def see_itself(self, operator: Any, results: Any, arguments: Sequence[Any]) -> None:
        """Follow an operator that has ended."""
        schema = getattr(operator, "_schema", None)
        is_index = schema is not None and schema.name in _INDEXES
        sources, read, has_graph = _NO_ROWS, set[int](), False
        for at, argument in enumerate(arguments):
            for tensor in dense_tensors(argument):
                address = self.address_of(tensor)
                if not address:
                    continue
                read.add(address)
                if requires_grad(tensor):
                    has_graph = True
                else:
                    sources |= self._of(tensor, address, is_part=is_index and not at)
        if has_graph and torch.is_grad_enabled():
            self._record(sources)
        elif len(sources) <= MOST_SOURCES:
            for tensor in dense_tensors(results):
                address = self.address_of(tensor)
                if sources and address and address not in read:  # neither a view nor a change in place
                    self._sources[address] = sources

    def _of(self, tensor: Tensor, address: int, *, is_part: bool) -> frozenset[Row]:
        """Return what a tensor that is read was computed from, with its own storage if it is a part of that."""
        found = self._sources.get(address, _NO_ROWS)
        if not (is_part or is_part_of_storage(tensor)):
            return found
        row = self._read.get(address)
        place = self._observed.place_of(tensor) if row is None else None
        if place is not None:
            row = self._read[address] = self._observed.row_of(Identity.INPUT, -1, -1, place)
        return found if row is None else found | {row}

    def _record(self, sources: frozenset[Row]) -> None:
        for row in sources - self._recorded:
            self._recorded.add(row)
            self._observed.add_row(row)


def is_part_of_storage(tensor: Tensor) -> bool:
    """Return whether a tensor is smaller than its storage."""
    sizes = known_sizes(tensor)
    is_known = len(sizes) == dimensions_of(tensor)
    return is_known and 0 < prod(sizes) * Tensor.element_size(tensor) < storage_of(tensor).nbytes()


def dense_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of one argument or result that have a storage."""
    for one in (value,) if is_tensor(value) else value if isinstance(value, (list, tuple)) else ():
        if is_tensor(one) and layout_of(one) is torch.strided:
            yield one
