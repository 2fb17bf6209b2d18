"""What the lists of operators are made of, and how one operator's memory is measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

Make, Call = Callable[[], list[torch.Tensor]], Callable[..., Any]
Cases = dict[str, tuple[Make, Call]]
gpu = "cuda"
SETTLE_S = 0.003
f32, bf16, f16, i64 = torch.float32, torch.bfloat16, torch.float16, torch.int64


def floats(*shape: int, dtype: torch.dtype = f32, grad: bool = True, last: bool = False) -> torch.Tensor:
    """Return random numbers on the GPU, in channels_last if ``last``."""
    made = torch.randn(*shape, device=gpu, dtype=dtype)
    if last:
        made = made.contiguous(memory_format=torch.channels_last)
    return made.requires_grad_(grad)


def ids(high: int, *shape: int) -> torch.Tensor:
    """Return random integers below ``high`` on the GPU."""
    return torch.randint(0, high, shape, device=gpu)


class List:
    """A list of operators by name."""

    def __init__(self) -> None:
        self.cases: Cases = {}

    def case(self, name: str, make: Make, call: Call) -> None:
        """Add an operator: what makes its arguments, and what calls it."""
        assert name not in self.cases, name
        self.cases[name] = make, call

    def over(
        self, calls: dict[str, Call], make: Callable[[torch.dtype], list[torch.Tensor]], kinds: Any = (f32, bf16)
    ) -> None:
        """Add operators in each dtype of ``kinds``."""
        for name, call in calls.items():
            for dtype in kinds:
                self.case(f"{name} {str(dtype)[6:]}", lambda dtype=dtype: make(dtype), call)


def tensors(found: Any) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [one for part in found for one in tensors(part)] if isinstance(found, (tuple, list)) else []


def layout_of(tensor: torch.Tensor) -> str:
    """Return the order of the dimensions in memory, the slowest first."""
    wide = [dim for dim in range(tensor.dim()) if tensor.shape[dim] > 1]
    return (
        "".join(map(str, sorted(wide, key=lambda dim: (-tensor.stride()[dim], dim))))
        if tensor.layout is torch.strided
        else "sparse"
    )


def measure(make: Make, call: Call) -> dict[str, Any]:
    """Return bytes: peak and held after forward, peak and held after backward, and kept at the end; and layouts."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # not in a PyTorch without CUDA
    if clear is not None:
        torch.cuda.synchronize()
        clear()
    gc.collect()
    inputs = make()
    wanted = [one for one in inputs if one.requires_grad]
    found: dict[str, Any] = {}
    begin = torch.cuda.memory_allocated()
    for _ in range(2):
        before = _begin()
        made = call(*inputs)
        found["forward"] = _since(before)
        results = [one for one in tensors(made) if one.requires_grad]
        found["layouts"] = [layout_of(one) for one in tensors(made)]
        if wanted and results:
            given = [torch.ones_like(one) for one in results]
            before = _begin()
            gradients = torch.autograd.grad(results, wanted, given, allow_unused=True)
            found["backward"] = _since(before)
            found["layouts"] += [layout_of(one) for one in gradients if one is not None]
            del gradients, given
        del made, results
    _settle()
    found["kept"] = torch.cuda.memory_allocated() - begin
    return found


def _begin() -> int:
    _settle()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _settle() -> None:
    """Wait until autograd's thread has freed what it used: it does so after backward has returned."""
    if torch.version.cuda is not None:
        torch.cuda.synchronize()
        time.sleep(SETTLE_S)


def _since(before: int) -> list[int]:
    _settle()
    return [torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before]
