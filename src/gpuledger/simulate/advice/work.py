"""Count the FLOPs of a program on the simulated GPU, by the dtype that they run in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from gpuledger.simulate.gpu.shortcuts import tensors_in

_CONVOLUTIONS = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)


class FlopsByDtype:
    """FLOPs of matrix products, convolutions and attention, by name of a dtype."""

    def __init__(self) -> None:
        self.flops: Counter[str] = Counter()

    def count(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add one call of an operator on the GPU."""
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            dtype = next((one.dtype for one in tensors_in(args) if one.is_floating_point()), None)
            self.flops[_name_of(func, dtype)] += int(formula(*args, **kwargs, out_val=result))


def _name_of(func: Any, dtype: torch.dtype | None) -> str:
    """Return the dtype that a GPU computes in; ``tf32`` if the program allows it."""
    if dtype in (None, torch.float32):
        is_convolution = func.overloadpacket in _CONVOLUTIONS
        setting: Any = torch.backends.cudnn.conv if is_convolution else torch.backends.cuda.matmul  # type: ignore[attr-defined]
        return "tf32" if setting.fp32_precision == "tf32" else "float32"
    return str(dtype).removeprefix("torch.")


def least_time_s(flops: Mapping[str, int], peak_tflop_s: Mapping[str, float]) -> float:
    """Return the time that a GPU needs for FLOPs at its peak rates. A dtype without a rate has that of float32.

    Source: the GPU's datasheet. Memory traffic, launches and the optimizer are not included.
    """
    return sum(number / (peak_tflop_s.get(name, peak_tflop_s["float32"]) * 1e12) for name, number in flops.items())
