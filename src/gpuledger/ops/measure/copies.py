"""Calls of one operator, each with inputs of its own, so that no cache holds what the next one reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import L2_ROUNDS, MEMORY_FRAC, Mode
from gpuledger.ops.measure.place import Place
from gpuledger.ops.measure.runners import MOST_COPIES
from gpuledger.ops.workloads.rebuild import rebuild


class Copy:
    """One call with its own inputs. Where the operator writes into them, they can be put back."""

    def __init__(
        self, function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any], *, writes: bool
    ) -> None:
        self.function = function
        self._args, self._kwargs = tuple(args), dict(kwargs)
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        if writes:
            self._kept = [(tensor, tensor.clone()) for tensor in _tensors((self._args, self._kwargs))]

    def __call__(self) -> object:
        """Run it."""
        return self.function(*self._args, **self._kwargs)

    def restore(self) -> None:
        """Put back what calls have written into the inputs."""
        for tensor, kept in self._kept:
            tensor.copy_(kept)

    def another(self) -> Copy:
        """Return a call with inputs of the same values elsewhere; what was one tensor twice is so again."""
        copied: dict[int, torch.Tensor] = {}
        args, kwargs = (_copied(value, copied) for value in (self._args, self._kwargs))
        return Copy(self.function, args, kwargs, writes=bool(self._kept))


def make_copies(key: OperatorKey, mode: Mode, place: Place) -> list[Copy]:
    """Return the calls that an operator's measurement goes through in turn: one where its inputs are to be hot."""
    call = rebuild(key, place.device)
    first = Copy(call.function, call.args, call.kwargs, writes=writes_inputs(call.function))
    return [first, *(first.another() for _ in range(count_copies(key, mode, place) - 1))]


def count_copies(key: OperatorKey, mode: Mode, place: Place) -> int:
    """Return how many copies pass through the cache three times over, as far as a quarter of the memory goes."""
    if mode is Mode.HOT:
        return 1
    one_bytes = max(work_of(key).bytes, 1)
    wanted = math.ceil(L2_ROUNDS * place.cache_bytes / one_bytes)
    affordable = int(MEMORY_FRAC * place.free_bytes() / one_bytes)
    return max(1, min(wanted, affordable, MOST_COPIES))


def needs_host(function: Any) -> bool:
    """Return whether an operator's output depends on its data, so that the host has to wait for it."""
    tags = getattr(function, "tags", ())
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


def writes_inputs(function: Any) -> bool:
    """Return whether an operator's schema says that it writes into an argument."""
    schema = getattr(function, "_schema", None)
    return schema is not None and any(
        argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the distinct tensors in nested arguments."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return list({id(tensor): tensor for inner in value for tensor in _tensors(inner)}.values())
    return []


def _copied(value: Any, known: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            known[id(value)] = _copied_tensor(value)
        return known[id(value)]
    if isinstance(value, dict):
        return {name: _copied(inner, known) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(inner, known) for inner in value)
    return value


def _copied_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values and strides in a storage of its own."""
    if tensor.layout is not torch.strided:
        return tensor.clone()
    storage = tensor.untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
