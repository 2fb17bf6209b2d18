"""Checkpoints that a program saves with ``torch.save`` and loads again: they stay in memory, without data.

Nothing is written, except an empty file where the program made the place with ``tempfile``: it will look for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from gpuledger.simulate.gpu.dispatch import SimulatedMode
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest.side_effects import is_temporary


@dataclass(frozen=True)
class _Saved:
    """A tensor without data, or a copy of one with data."""

    size: tuple[int, ...]
    dtype: torch.dtype
    is_on_gpu: bool
    data: torch.Tensor | None


def install_checkpoints(patches: Patches, mode: SimulatedMode) -> None:
    """Have ``torch.load`` return what the program has saved under the same name."""
    kept: dict[str, Any] = {}
    plain_save, plain_load = torch.save, torch.load

    def save(what: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        plain_save(what, file, *args, **kwargs)
        path = _path_of(file)
        if path:
            kept[path] = tree_map(lambda one: _saved(mode, one), what)
            if is_temporary(path):
                with open(path, "wb"):
                    pass

    def load(file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        path = _path_of(file)
        if path not in kept:
            return plain_load(file, map_location, *args, **kwargs)
        return tree_map(lambda one: _loaded(mode, one, map_location), kept[path])

    patches.put(torch, "save", save)
    patches.put(torch, "load", load)


def _path_of(file: Any) -> str:
    """Return the absolute path of a file that is given by its name; "" of an open file."""
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, (str, bytes, os.PathLike)) else ""


def _saved(mode: SimulatedMode, one: Any) -> Any:
    if not isinstance(one, torch.Tensor) or one.layout is not torch.strided:
        return one
    data = None if isinstance(one, FakeTensor) else one.detach().clone()
    return _Saved(tuple(one.shape), one.dtype, mode.device.holds(one), data)


def _loaded(mode: SimulatedMode, one: Any, place: Any) -> Any:
    if not isinstance(one, _Saved):
        return one
    if _is_gpu(place, one.is_on_gpu):
        return torch.empty(one.size, dtype=one.dtype, device="cuda")
    return mode.make(one.size, torch.empty(0), one.dtype) if one.data is None else one.data.clone()


def _is_gpu(place: Any, was_on_gpu: bool) -> bool:
    """Return whether a tensor is loaded onto the GPU. A function for ``map_location`` usually returns the CPU's."""
    if place is None:
        return was_on_gpu
    if isinstance(place, dict):
        return was_on_gpu and not any(str(to).startswith("cpu") for to in place.values())
    return isinstance(place, int) or str(place).startswith("cuda")
