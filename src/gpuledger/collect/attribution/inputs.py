"""Input shapes of the outermost module. The shape of its first tensor gives the samples and tokens of a step."""

from __future__ import annotations

from collections import Counter
from typing import Any

from gpuledger.collect.adapter.program_objects import is_complex, is_floating, shape_of, tensors_in, without_overrides
from gpuledger.collect.adapter.torch_entrances import is_tracing
from gpuledger.model.journal.journal import Part

LONGEST = 4_000
"""Maximum number of rows, each a run of consecutive calls with the same shape."""

LEVELS = 2
"""Maximum nesting depth of a call's arguments that is searched for the first tensor."""

Shape = tuple[int, ...]


class InputShapes:
    """Collects the input shapes of the first module that is called with a tensor. Keeps no tensor alive."""

    def __init__(self) -> None:
        self._module_id = -1
        self._tokens = False
        self._shapes: Counter[Shape] = Counter()
        self._calls: list[list[int]] = []

    def see(self, module_id: int, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call of an outermost module in a step."""
        if self._module_id not in (-1, module_id) or is_tracing():  # while tracing, sizes are symbolic and not integers
            return
        tensor = next(tensors_in((*args, *kwargs.values()), LEVELS), None)
        if tensor is None:
            return
        with without_overrides():
            shape = tuple(int(size) for size in shape_of(tensor))
            is_whole = not (is_floating(tensor) or is_complex(tensor))
        if not shape:
            return
        self._module_id = module_id
        self._tokens = len(shape) >= 2 and is_whole
        self._shapes[shape] += 1
        rows, length = shape[0], shape[1] if self._tokens else -1
        last = self._calls[-1] if self._calls else None
        if last is not None and last[1] == step:
            return  # a step of several calls keeps the shape of the first
        if last is not None and last[2:] == [rows, length]:
            last[1] = step
        elif len(self._calls) < LONGEST:
            self._calls.append([step, step, rows, length])

    def drain(self, part: Part) -> None:
        """Write the shapes collected since the last drain."""
        if self._module_id >= 0:
            shape, _ = self._shapes.most_common(1)[0]
            part.facts["inputs"] = {"module_id": self._module_id, "shape": list(shape), "tokens": self._tokens}
            part.facts["calls"] = self._calls
