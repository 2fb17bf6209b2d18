"""What kernels hold beside their results while they work: one rule each, with the measurement it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gpuledger.virtual.device import VirtualDevice

aten = torch.ops.aten
MIB = 1 << 20


@dataclass(frozen=True)
class Spaces:
    """Bytes an operator takes before its result is made, and after, until it ends."""

    label: str
    before: list[int]
    after: list[int]


Rule = Callable[[Any, Any, VirtualDevice], Spaces | None]


def cublas_bytes(device: VirtualDevice) -> int:
    """Return the workspace of one cuBLAS handle and stream.

    Source: torch's rule (aten/src/ATen/cuda/CublasHandlePool.cpp), 32 MiB seen on an H200.
    """
    return 32 * MIB if device.card.compute_capability >= (9, 0) else 8_519_680


def _products(args: Any, kwargs: Any, device: VirtualDevice) -> Spaces | None:
    device.keep(("cublas", device.stream, device.in_backward), cublas_bytes(device), "cublas workspace")
    return None


RULES: dict[Any, Rule] = {}
for _operator in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.mv, aten.dot, aten.addmv):
    RULES[_operator.default] = _products


def workspaces_of(func: Any, args: Any, kwargs: Any, device: VirtualDevice) -> Spaces | None:
    """Return what ``func`` takes beside its result; None where no rule knows of anything."""
    rule = RULES.get(func)
    return None if rule is None else rule(args, kwargs, device)
