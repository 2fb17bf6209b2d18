"""What a rule returns: the temporary memory of one call of an operator, in the order in which it is allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice


@dataclass(frozen=True)
class Spaces:
    """Temporary memory of an operator, in bytes.

    ``first`` is allocated and freed before the result is allocated. ``before`` is allocated before the result and freed
    at the end. ``after`` is allocated and freed after the result, and ``later`` after that. ``kept`` are
    workspaces that a library allocates once per key and never frees.
    """

    label: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    later: tuple[int, ...] = ()
    kept: tuple[tuple[object, int], ...] = ()


Rule = Callable[[Any, Any, "SimulatedDevice"], Spaces | None]
"""Gets positional arguments, named arguments and the GPU; returns None if the operator needs nothing more."""


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's elements fill one memory range without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def contiguous_copy(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the bytes of the copy that ``contiguous()`` makes; empty if it makes none."""
    return () if tensor.is_contiguous() else (bytes_of(tensor),)


def argument(args: Any, kwargs: Any, place: int, name: str, default: Any = None) -> Any:
    """Return an argument that was given by position or by name."""
    return args[place] if len(args) > place else kwargs.get(name, default)
