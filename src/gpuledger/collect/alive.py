"""What is alive in this process, as the garbage collector knows it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch

from gpuledger.collect import torch_private


def alive(classes: tuple[type, ...]) -> list[Any]:
    """Return the objects of these classes that are alive. Asks types only: no code of the objects themselves runs."""
    wanted: dict[type, bool] = {}
    found = []
    for thing in gc.get_objects():
        kind = type(thing)
        known = wanted.get(kind)
        if known is None:
            known = wanted[kind] = issubclass(kind, classes)
        if known:
            found.append(thing)
    return found


def alive_tensors() -> Iterator[torch.Tensor]:
    """Yield the tensors with a storage of their own that are alive, and their gradients.

    Wrappers (DTensor, fake tensors) are passed by: what they wrap is found itself.
    """
    with torch_private.without_torch_function():
        for tensor in alive((torch.Tensor,)):
            if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                continue
            yield tensor
            if tensor.is_leaf and tensor.grad is not None:
                yield tensor.grad
