"""Live objects of this process, from the garbage collector."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gpuledger.collect.adapter import dynamo
from gpuledger.collect.adapter.other_threads import gradients_of, tracked_objects
from gpuledger.collect.adapter.program_objects import (
    attributes_of,
    children_of,
    holds_tensors,
    is_leaf,
    without_overrides,
)


def loader_classes() -> tuple[type, ...]:
    """Return the classes of DataLoaders and of their iterators; empty if the program has not imported them.

    A loop over a DataLoader without a name keeps only the iterator alive.
    """
    loaders = sys.modules.get("torch.utils.data.dataloader")
    return () if loaders is None else (loaders.DataLoader, loaders._BaseDataLoaderIter)


class LiveObjects:
    """The live modules, optimizers, tensors and DataLoaders at the time of the first query.

    Walks all objects once for all queries.

    Checks types only, so no code of the objects runs. Keeps the objects that it found alive: release it soon.
    """

    def __init__(self) -> None:
        self._found: tuple[list[Any], list[Any], list[Any]] | None = None

    def modules(self) -> list[Any]:
        """Return the modules and optimizers."""
        return self._walk()[1]

    def loaders(self) -> list[Any]:
        """Return the DataLoaders and their iterators."""
        return self._walk()[2]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that have their own storage, and their gradients.

        Skips wrappers (DTensor, fake tensors): the wrapped tensors are found themselves. Skips gradients if another
        thread could write them.
        """
        plain = torch.Tensor.__torch_dispatch__
        tensors = [tensor for tensor in self._walk()[0] if type(tensor).__torch_dispatch__ is plain]
        with without_overrides():
            yield from tensors
            gradients = gradients_of([tensor for tensor in tensors if is_leaf(tensor)])
            yield from (gradient for gradient in gradients or () if gradient is not None)

    def _walk(self) -> tuple[list[Any], list[Any], list[Any]]:
        if self._found is not None:
            return self._found
        tensors: list[Any] = []
        modules: list[Any] = []
        loaders: list[Any] = []
        others: list[Any] = []  # leave the result empty
        listed = ((torch.Tensor, tensors), ((nn.Module, Optimizer), modules), (loader_classes(), loaders))
        keeps: dict[int, list[Any]] = {}  # by identity: a metaclass of the program can define __hash__
        young, old = tracked_objects()
        known = set(map(id, young))
        for things in (young, old):
            for thing in things:
                kind = type(thing)
                kept = keeps.get(id(kind))
                if kept is None:
                    kept = keeps[id(kind)] = next((found for kinds, found in listed if issubclass(kind, kinds)), others)
                if kept is not others and (things is young or id(thing) not in known):
                    kept.append(thing)
        self._found = tensors, modules, loaders
        return self._found


def unregistered_of(things: Iterable[Any], numbers: Container[int]) -> list[nn.Module]:
    """Return the modules with tensors that have no id yet, and that no other module without one contains.

    Args:
        things: Modules and optimizers.
        numbers: ``id`` of each registered module.
    """
    found = [
        thing
        for thing in things
        if issubclass(type(thing), nn.Module)
        and id(thing) not in numbers
        and "_parameters" in attributes_of(thing)
        and not dynamo.is_compilers_own(thing)
    ]
    inner = {id(child) for module in found for _, child in children_of(module)}
    return [module for module in found if id(module) not in inner and holds_tensors(module)]
