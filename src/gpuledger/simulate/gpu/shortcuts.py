"""Shortcuts for operators with a simple fake result: views, and optimizer operators over lists of tensors.

Most operators of a step are of these kinds. Torch looks up fake results in a cache by a key of all arguments, which
takes longer than to create a view, and far longer for a list of all parameters of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

Way = Callable[[FakeTensorMode, Any, Any, dict[str, Any]], Any]

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


def shortcut(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return an operator's fake result; NotImplemented if torch has to compute it."""
    way = _way_of(func)
    return NotImplemented if way is None else way(mode, func, args, kwargs)


@cache
def is_view(func: Any) -> bool:
    """Return whether an operator's results share the storage of an argument, which it does not read."""
    returns = func._schema.returns
    return func in _VIEWS or any(one.alias_info is not None and not one.alias_info.is_write for one in returns)


@cache
def _way_of(func: Any) -> Way | None:
    if func in _VIEWS:
        return _view
    if isinstance(func, torch._ops.OpOverload) and func.name().startswith("aten::_foreach_"):
        return None if func._schema.returns else _nothing
    return None


def _view(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return a view of a fake tensor; NotImplemented if torch keeps the tensor's value."""
    tensor = args[0]
    if type(tensor) is not FakeTensor or tensor.fake_mode is not mode or tensor.constant is not None:
        return NotImplemented
    if tensor.layout is not torch.strided:
        return NotImplemented
    with in_kernel_invocation_manager(mode):
        made = func(*args, **kwargs)
    return FakeTensor(mode, made, tensor.fake_device)


def _nothing(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Do nothing: the operator only changes values, and fake tensors have none."""
