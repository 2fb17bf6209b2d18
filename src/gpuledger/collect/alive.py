"""What is alive in this process, as the garbage collector knows it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.program_objects import grad_of, is_leaf, without_overrides


class Living:
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
        other threads run: the backward pass of one could put another tensor there at this moment, which ends the
        process.
        """
        alone = threading.active_count() == 1
        with without_overrides():
            for tensor in self._walk()[0]:
                if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                    continue
                yield tensor
                gradient = grad_of(tensor) if alone and is_leaf(tensor) else None
                if gradient is not None:
                    yield gradient

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
