"""Shortcuts to fake results: views, optimizer operators over lists of tensors, and calls with known arguments.

Torch looks up fake results in a cache, too, but with more checks: its lookup takes several times as long as the one
here. These checks are for symbolic sizes and for operators that are traced, and an estimate has neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

_aten = torch.ops.aten
_VIEWS = frozenset(
    {
        _aten._unsafe_view.default,
        _aten.alias.default,
        _aten.detach.default,
        _aten.expand.default,
        _aten.permute.default,
        _aten.select.int,
        _aten.slice.Tensor,
        _aten.t.default,
        _aten.transpose.int,
        _aten.unsqueeze.default,
        _aten.view.default,
    }
)
"""Operators with one tensor argument, and one result that shares its storage."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of arguments or results, in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from tensors_in(inner)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_in(inner)


@cache
def is_view(func: Any) -> bool:
    """Return whether an operator's results share the storage of an argument, which it does not read."""
    returns = func._schema.returns
    return func in _VIEWS or any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


@cache
def is_made_of_others(func: Any) -> bool:
    """Return whether an operator is made of others. PyTorch calls those in its place, but not in inference mode.

    Those with a kernel of their own beside are not. ``is_nonzero`` is not taken apart: only it knows that the truth of
    a value is enough.
    """
    if not isinstance(func, torch._ops.OpOverload) or func is _aten.is_nonzero.default:
        return False
    has_kernel, key = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C.DispatchKey
    return has_kernel(func.name(), key.CompositeImplicitAutograd) and not has_kernel(func.name(), key.CPU)


class _Way(Enum):
    """How a fake result is made: ``KNOWN`` as before with such arguments, ``TORCH`` by torch each time."""

    VIEW = 1
    NOTHING = 2
    KNOWN = 3
    TORCH = 4


_MOST_KNOWN = 1 << 16
"""Results that are kept. Then the dictionary is emptied, so that arguments that change in every step need no memory."""

_BY_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_MASKS = (torch.bool, torch.uint8)


@cache
def _way_of(func: Any) -> _Way:
    """Return how results of an operator are made."""
    if func in _VIEWS:
        return _Way.VIEW
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return _Way.TORCH
    schema, name = func._schema, func.name()
    if name.startswith("aten::_foreach_") and not schema.returns:
        return _Way.NOTHING  # the operator only changes values, and fake tensors have none
    if is_view(func) or (any(tag in func.tags for tag in _BY_VALUES) and func is not _aten.index.Tensor):
        return _Way.TORCH
    if any(argument.is_out for argument in schema.arguments) or (schema.is_mutable and not schema.name.endswith("_")):
        return _Way.TORCH
    # An operator that is made of others can return its argument, such as dropout outside of training.
    return _Way.TORCH if is_made_of_others(func) else _Way.KNOWN


@dataclass(frozen=True, slots=True)
class _Shape:
    """A new tensor of a result."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Result:
    """A result of an operator: a position of an argument, a new tensor or None each; ``container`` is None for one."""

    parts: tuple[_Shape | int | None, ...]
    container: type[Any] | None


class Shortcuts:
    """Makes fake results.

    Args:
        mode: Its tensors are the arguments and the results.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._known: dict[tuple[Any, ...], _Result | None] = {}
        self._attributes: dict[torch.device, dict[str, Any]] = {}

    def result(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return an operator's fake result."""
        way = _way_of(func)
        if way is _Way.VIEW:
            return self._view(func, args, kwargs)
        if way is _Way.NOTHING:
            return None
        key = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()] if way is _Way.KNOWN else None
        if key is None or not self._describe(key, args) or not self._describe(key, kwargs.items()):
            return self._torchs(func, args, kwargs)
        if func is _aten.index.Tensor and any(one is not None and one.dtype in _MASKS for one in args[1]):
            return self._torchs(func, args, kwargs)
        known = self._known.get(tuple(key), ...)
        if isinstance(known, _Result):
            made = [args[part] if isinstance(part, int) else self._make(part) for part in known.parts]
            return made[0] if known.container is None else known.container(made)
        result = self._torchs(func, args, kwargs)
        if known is not None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[tuple(key)] = self._describe_result(result, args, kwargs)
        return result

    def _torchs(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self.mode:
            return func(*args, **kwargs)

    def _view(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a view of a fake tensor."""
        if not self._is_plain(args[0]):
            return self._torchs(func, args, kwargs)
        with in_kernel_invocation_manager(self.mode):
            made = func(*args, **kwargs)
        return self._fake(made, args[0].fake_device)

    def _is_plain(self, tensor: Any) -> bool:
        """Return whether a tensor is one of the mode's, and torch does not keep its value."""
        return (
            type(tensor) is FakeTensor
            and tensor.fake_mode is self.mode
            and tensor.constant is None
            and tensor.layout is torch.strided
        )

    def _describe(self, key: list[Any], values: Any) -> bool:
        """Add to ``key`` what a result can depend on; return False if that is not known of a value."""
        for value in values:
            if isinstance(value, FakeTensor):
                if not self._is_plain(value):
                    return False
                key += (value.dtype, value.shape, value.stride(), value.fake_device, value.requires_grad)
                key += (value.is_conj(), value.is_neg())
            elif isinstance(value, (list, tuple)):
                key += (type(value), len(value))
                if not self._describe(key, value):
                    return False
            elif value is None or isinstance(value, _CONSTANTS):
                key += (type(value), value)
            else:
                return False
        return True

    # -- results ----------------------------------------------------------------------------------------------------

    def _make(self, shape: _Shape | None) -> Any:
        if shape is None:
            return None
        with torch._C._DisableTorchDispatch():
            made = torch.empty_strided(shape.shape, shape.stride, dtype=shape.dtype, device="meta")
        return self._fake(made, shape.device)

    def _fake(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a fake tensor of a meta tensor, with the attributes of another one of that device."""
        attributes = self._attributes.get(device)
        if attributes is None:
            first = FakeTensor(self.mode, tensor, device)
            self._attributes[device] = dict(vars(first))
            return first
        made: torch.Tensor = torch.Tensor._make_subclass(
            FakeTensor, tensor, tensor.requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        vars(made).update(attributes)
        return made

    def _describe_result(self, result: Any, args: Any, kwargs: dict[str, Any]) -> _Result | None:
        """Return how to make such a result again; None if that is not known."""
        container = type(result) if isinstance(result, (list, tuple)) else None
        parts: list[_Shape | int | None] = []
        storages = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, kwargs))}
        for one in (result,) if container is None else result:
            place = next((place for place, given in enumerate(args) if given is one and one is not None), None)
            if one is None or place is not None:
                parts.append(place)
                continue
            if not self._is_plain(one) or one.untyped_storage()._cdata in storages:
                return None
            shape = _Shape(one.shape, one.stride(), one.dtype, one.fake_device)
            if not _is_alike(self._make(shape), one):
                return None
            storages.add(one.untyped_storage()._cdata)
            parts.append(shape)
        return _Result(tuple(parts), container)


_CONSTANTS = (int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def _is_alike(made: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether a new tensor is as torch has made it."""
    return (
        torch._C._dispatch_key_set(made) == torch._C._dispatch_key_set(expected)
        and made.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
        and made.storage_offset() == expected.storage_offset()
        and made.requires_grad == expected.requires_grad
    )
