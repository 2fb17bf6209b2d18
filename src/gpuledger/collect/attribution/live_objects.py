"""What is alive in this process, as the garbage collector knows it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.adapter.other_threads import others_run_backward, undisturbed
from gpuledger.collect.adapter.program_objects import grad_of, is_leaf, without_overrides


class LiveObjects:
    """What is alive when it is first asked for: one walk through all objects, whoever asks for what of them.

    Asks types only: no code of the objects themselves runs. It keeps what it found alive, so let go of it.
    """

    def __init__(self) -> None:
        self._found: tuple[list[Any], list[Any]] | None = None

    def modules(self) -> list[Any]:
        """Return the modules and optimizers."""
        return self._walk()[1]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors with a storage of their own, and their gradients.

        Wrappers (DTensor, fake tensors) are passed by: what they wrap is found itself. Gradients are left out while
        another thread is in a backward pass: it could put another tensor there at this moment, which ends the process.
        """
        plain = torch.Tensor.__torch_dispatch__
        tensors = [tensor for tensor in self._walk()[0] if type(tensor).__torch_dispatch__ is plain]
        with without_overrides():
            yield from tensors
            with undisturbed() as nobody_else:
                alone = nobody_else and not others_run_backward()
                gradients = [_gradient_of(tensor) for tensor in tensors] if alone else []
            yield from (gradient for gradient in gradients if gradient is not None)

    def _walk(self) -> tuple[list[Any], list[Any]]:
        if self._found is not None:
            return self._found
        tensors: list[Any] = []
        modules: list[Any] = []
        others: list[Any] = []  # stays empty
        keeps: dict[int, list[Any]] = {}  # by identity: a class can have a metaclass that says how it is hashed
        for thing in gc.get_objects():
            kind = type(thing)
            kept = keeps.get(id(kind))
            if kept is None:
                module = issubclass(kind, (nn.Module, Optimizer))
                kept = keeps[id(kind)] = tensors if issubclass(kind, torch.Tensor) else modules if module else others
            if kept is not others:
                kept.append(thing)
        self._found = tensors, modules
        return self._found


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a leaf's gradient; None for a view that autograd refuses to look at, changed in place without it."""
    try:
        return grad_of(tensor) if is_leaf(tensor) else None
    except RuntimeError:
        return None
