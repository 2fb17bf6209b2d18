"""What the outermost module is called with: the shape of its first tensor tells samples and tokens of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from gpuledger.model.journal import Part

LONGEST = 4_000
"""Runs of calls with one shape that are kept."""

Shape = tuple[int, ...]


class InputShapes:
    """Remembers the shapes of the first module that is called with a tensor. Nothing of a tensor is kept alive."""

    def __init__(self) -> None:
        self._module_id = -1
        self._tokens = False
        self._shapes: Counter[Shape] = Counter()
        self._calls: list[list[int]] = []

    def see(self, module_id: int, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call of an outermost module in a step."""
        if self._module_id not in (-1, module_id):
            return
        tensor = _first_tensor((*args, *kwargs.values()))
        if tensor is None or not tensor.dim():
            return
        shape = tuple(int(size) for size in tensor.shape)
        self._module_id = module_id
        self._tokens = tensor.dim() >= 2 and not (tensor.is_floating_point() or tensor.is_complex())
        self._shapes[shape] += 1
        rows, length = shape[0], shape[1] if self._tokens else -1
        last = self._calls[-1] if self._calls else None
        if last is not None and last[1] == step:
            return  # a step of several calls: the first tells it
        if last is not None and last[2:] == [rows, length]:
            last[1] = step
        elif len(self._calls) < LONGEST:
            self._calls.append([step, step, rows, length])

    def drain(self, part: Part) -> None:
        """Write what was seen so far."""
        if self._module_id >= 0:
            shape, _ = self._shapes.most_common(1)[0]
            part.facts["inputs"] = {"module_id": self._module_id, "shape": list(shape), "tokens": self._tokens}
            part.facts["calls"] = self._calls


def _first_tensor(values: Iterable[Any]) -> torch.Tensor | None:
    """Return the first tensor among ``values``, or inside one of them that is a list, tuple or dict."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        found = next((one for one in inner if isinstance(one, torch.Tensor)), None)
        if found is not None:
            return found
    return None
