"""Classify a kernel or operator by its name, with the typical power of its class."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class WorkClass:
    """A class of work: dynamic power while it runs, relative to a large matrix product, with bounds."""

    name: str
    power: float
    low: float
    high: float


CLASSES = (
    WorkClass("matrix", 1.0, 0.75, 1.1),
    WorkClass("memory", 0.65, 0.4, 0.85),
    WorkClass("collective", 0.35, 0.1, 0.65),
    WorkClass("other", 0.6, 0.2, 1.0),
)
"""Assumed, not fitted. A large matrix product is at the power cap: 691 W on an H200, 120 W idle power (with clocks up)
and 570 W dynamic power. Moving a byte takes 93.6 pJ on Hopper (published: 11.7 pJ/bit of its memory). A kernel that
only moves bytes reaches 4 TB/s, so it takes 374 W, 0.65 of 570 W. The bounds are for kernels that reach less."""

_MATRIX = re.compile(
    r"gemm|gemv|matmul|nvjet|cutlass|xmma|wgmma|cublas|implicit_convolve|convolve|conv2d|conv3d|convolution|dgrad|wgrad"
    r"|fprop|winograd|flash|fmha|attention|\bmm\b|::addmm|::bmm|::baddbmm|::mm\b|::linear|addbmm|einsum|_scaled_mm",
    re.IGNORECASE,
)
_MEMORY = re.compile(
    r"elementwise|vectorized|reduce|norm|softmax|copy|cat|index|gather|scatter|embedding|fill|memcpy|memset|dropout|pool"
    r"|multi_tensor|triton_|transpose|permute|::(add|sub|mul|div|pow|sum|mean|relu|gelu|silu|tanh|sigmoid|square|sqrt"
    r"|zero|ones|clone|threshold|native_|_foreach|lerp|addc|nll|log|exp|neg|where|max|min|arange|rand|expand|detach"
    r"|accumulate)|accumulategrad|adam|sgd|cunn|sort|scan",
    re.IGNORECASE,
)


def class_of(name: str, kind: str) -> int:
    """Return the index in :data:`CLASSES` of a kernel or operator called ``name``, of a span of ``kind``."""
    if kind == "collective" or name.startswith("nccl"):
        return 2
    if kind == "copy":
        return 1
    if _MATRIX.search(name):
        return 0
    return 1 if _MEMORY.search(name) else 3
