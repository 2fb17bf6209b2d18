"""Calls of one operator with different inputs, so that inputs are not in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import L2_ROUNDS, MEMORY_FRAC, Mode
from gpuledger.ops.measure.measured_device import Device
from gpuledger.ops.measure.runners import MOST_COPIES
from gpuledger.ops.workloads.rebuild import rebuild


class Copy:
    """One call with its own inputs, which can be restored if the operator writes to them."""

    def __init__(
        self, function: Callable[..., object], args: Sequence[Any], kwargs: Mapping[str, Any], *, writes: bool
    ) -> None:
        self.function = function
        self.args, self.kwargs = tuple(args), dict(kwargs)
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        if writes:
            self._kept = [(tensor, tensor.clone()) for tensor in _tensors((self.args, self.kwargs))]

    def __call__(self) -> object:
        """Run it."""
        return self.function(*self.args, **self.kwargs)

    def restore(self) -> None:
        """Restore the inputs that calls have changed."""
        for tensor, kept in self._kept:
            tensor.copy_(kept)

    def another(self) -> Copy:
        """Return a call with copies of the inputs. A tensor that is used twice is copied once."""
        copied: dict[int, torch.Tensor] = {}
        args, kwargs = (_copied(value, copied) for value in (self.args, self.kwargs))
        return Copy(self.function, args, kwargs, writes=bool(self._kept))


def make_copies(key: OperatorKey, mode: Mode, place: Device) -> list[Copy]:
    """Return the calls that a measurement rotates through; only one for hot inputs."""
    call = rebuild(key, place.device)
    first = Copy(call.function, call.args, call.kwargs, writes=writes_inputs(call.function))
    return [first, *(first.another() for _ in range(count_copies(key, mode, place) - 1))]


def count_copies(key: OperatorKey, mode: Mode, place: Device) -> int:
    """Return the number of copies that fill the cache three times, limited to a quarter of the memory."""
    if mode is Mode.HOT:
        return 1
    one_bytes = max(work_of(key).bytes, 1)
    wanted = math.ceil(L2_ROUNDS * place.cache_bytes / one_bytes)
    affordable = int(MEMORY_FRAC * place.free_bytes() / one_bytes)
    return max(1, min(wanted, affordable, MOST_COPIES))


def why_no_graph(call: Copy) -> str:
    """Return why a call cannot be in a CUDA graph; empty if it can.

    The backward of memory-efficient attention reads the random seed of its dropout on the CPU. While a graph is
    captured, it gives the seed's address to the GPU, which cannot read there.
    """
    tags = getattr(call.function, "tags", ())
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return "the shape of its output depends on its data"
    schema = getattr(call.function, "_schema", None)
    names = [] if schema is None else [argument.name for argument in schema.arguments]
    named = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    seed = named.get("philox_seed")
    if isinstance(seed, torch.Tensor) and seed.device.type == "cpu" and named.get("dropout_p"):
        return "its random seed is in CPU memory"
    return ""


def writes_inputs(function: Any) -> bool:
    """Return whether an operator writes to an argument, by its schema."""
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
    """Return a copy of a tensor with the same strides in a new storage."""
    if tensor.layout is not torch.strided:
        return tensor.clone()
    storage = tensor.untyped_storage().clone()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
