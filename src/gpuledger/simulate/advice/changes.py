"""Change a program on the simulated GPU while it runs: its batches, its model's calls, and its optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import BatchSampler, DataLoader

from gpuledger.errors import InputError
from gpuledger.simulate.advice.combination import ACCUMULATED
from gpuledger.simulate.advice.optimizers import ChangedOptimizers
from gpuledger.simulate.advice.work import FlopsByDtype
from gpuledger.simulate.gpu.patches import Patches

_LOADER = inspect.signature(DataLoader.__init__)
_LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


class Changes:
    """Applies a combination's measures to a program, and counts its FLOPs.

    Args:
        order: Fields of a :class:`.Combination`, and ``dtype`` of autocast. With ``in_arguments``, the
            program's arguments divide its batches.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.work = FlopsByDtype()
        self._order = order
        self._optimizers = ChangedOptimizers(order["optimizer"], order["parts"] == ACCUMULATED)
        self._batch = 0
        self._blocks: dict[int, nn.Module] = {}
        self._searched: dict[int, nn.Module] = {}
        """Outermost modules in which blocks were searched, by id. The references keep the ids from being reused."""
        self._depth = 0

    def found(self) -> dict[str, Any]:
        """Return what the measures were applied to, for :meth:`.Applied.of`."""
        return {
            "batch": self._batch,
            "blocks": len(self._blocks),
            "optimizers": list(self._optimizers.changed),
            "dtype": self._order["dtype"],
        }

    def install(self, patches: Patches) -> None:
        """Apply the measures to everything that the program makes and calls from now on."""
        plain_call = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self._call(plain_call, module, args, kwargs)

        patches.put(nn.Module, "__call__", call)
        self._optimizers.install(patches)
        if not self._order["in_arguments"]:
            self._divide_batches(patches)

    def count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add one call of an operator on the GPU to the FLOPs."""
        self.work.count(func, args, kwargs, result)

    # -- calls of modules -------------------------------------------------------------------------------------------

    def _call(self, plain: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._depth:
            if id(module) in self._blocks and torch.is_grad_enabled():
                return checkpoint(self._inside(plain), module, *args, use_reentrant=False, **kwargs)
            return plain(module, *args, **kwargs)
        if not _is_trained(module):
            return plain(module, *args, **kwargs)
        if self._order["checkpoint"] and id(module) not in self._searched:
            self._searched[id(module)] = module
            self._blocks.update({id(block): block for block in repeated_blocks(module)})
            _stop_caching(module)
        if not self._order["autocast"]:
            return self._inside(plain)(module, *args, **kwargs)
        with torch.autocast("cuda", getattr(torch, self._order["dtype"])):
            return self._inside(plain)(module, *args, **kwargs)

    def _inside(self, plain: Any) -> Any:
        def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with self._deeper():
                return plain(module, *args, **kwargs)

        return run

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    # -- batches ----------------------------------------------------------------------------------------------------

    def _divide_batches(self, patches: Patches) -> None:
        """Divide the batches of the program's data loaders."""
        plain = DataLoader.__init__

        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = _LOADER.bind(loader, *args, **kwargs)
            own = given.arguments.get("batch_sampler")
            if isinstance(own, BatchSampler):
                own.batch_size = self._part_of(own.batch_size)
            elif own is None and given.arguments.get("batch_size", 1):
                given.arguments["batch_size"] = self._part_of(given.arguments.get("batch_size", 1))
            plain(*given.args, **given.kwargs)

        patches.put(DataLoader, "__init__", init)

    def _part_of(self, batch: int) -> int:
        """Return the size of a part of a batch. The first loader that the program makes is the training's.

        Raises:
            InputError: the batch cannot be divided.
        """
        divisor: int = self._order["divisor"]
        if not self._batch:
            self._batch = batch
            if batch % divisor:
                raise InputError(f"a batch of {batch:,} cannot be divided by {divisor:,}")
        return max(batch // divisor, 1)


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the outermost blocks of a model that are repeated: in one list, of one class, with parts and parameters.

    Source: the rule of model libraries, which checkpoint each layer of a list of layers.
    """
    found: list[nn.Module] = []
    for child in model.children():
        found += [child] if _is_block_of(model, child) else repeated_blocks(child)
    return found


def _is_block_of(parent: nn.Module, child: nn.Module) -> bool:
    if not isinstance(parent, _LISTS) or sum(type(one) is type(child) for one in parent.children()) < 2:
        return False
    is_list = isinstance(child, (nn.ModuleList, nn.ModuleDict))  # these are not called
    return not is_list and any(True for _ in child.children()) and any(True for _ in child.parameters())


def _is_trained(module: nn.Module) -> bool:
    return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())


def _stop_caching(module: nn.Module) -> None:
    """Switch off the cache of keys and values: what is computed again in backward may not append to it."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if getattr(config, "use_cache", None):
            config.use_cache = False  # type: ignore[union-attr]
