"""Operators whose fake result is at hand: most of what a step calls are views, and steps of optimizers over lists.

Torch's own way to a fake result looks up what it has seen before by a key of all arguments, which takes longer than
to make a view, and for a list of every parameter of a model far longer.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""Operators whose one result is the storage of their first argument, the only tensor they take."""


def shortcut(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return an operator's fake result, NotImplemented where torch's own way has to be gone."""
    way = _way_of(func)
    return NotImplemented if way is None else way(mode, func, args, kwargs)


@cache
def _way_of(func: Any) -> Way | None:
    if func in _VIEWS:
        return _view
    if isinstance(func, torch._ops.OpOverload) and func.name().startswith("aten::_foreach_"):
        return None if func._schema.returns else _nothing
    return None


def _view(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return another look at a fake tensor's storage; a tensor whose value torch still knows goes torch's way."""
    tensor = args[0]
    if type(tensor) is not FakeTensor or tensor.fake_mode is not mode or tensor.constant is not None:
        return NotImplemented
    if tensor.layout is not torch.strided:
        return NotImplemented
    with in_kernel_invocation_manager(mode):
        made = func(*args, **kwargs)
    return FakeTensor(mode, made, tensor.fake_device)


def _nothing(mode: FakeTensorMode, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Values change, and values are not kept."""
