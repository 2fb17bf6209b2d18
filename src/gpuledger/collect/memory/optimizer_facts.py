"""What an optimizer is: its class, where its update is written, and which forms of it exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

from gpuledger.collect.adapter.program_objects import (
    class_name,
    device_of,
    group_options,
    is_tensor,
    parameter_groups,
    without_overrides,
)

_SWITCHES = ("foreach", "fused", "differentiable")


def describe_optimizers(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """Return class, module of ``step``, switches and parameters of each optimizer, as JSON."""
    with without_overrides():
        return [_describe(optimizer) for optimizer in optimizers]


def _describe(optimizer: Optimizer) -> dict[str, Any]:
    groups = group_options(optimizer)
    parameters = [one for group in parameter_groups(optimizer) for one in group if is_tensor(one)]
    return {
        "name": class_name(type(optimizer)),
        "step_module": _module_of_step(type(optimizer)),
        "has": [name for name in _SWITCHES if groups and all(name in group for group in groups)],
        "uses": [name for name in _SWITCHES if any(group.get(name) is True for group in groups)],
        "without": [name for name in _SWITCHES if groups and all(group.get(name) is False for group in groups)],
        "devices": sorted({device_of(one).type for one in parameters}),
        "is_floating": all(one.dtype.is_floating_point for one in parameters),
    }


def _module_of_step(kind: type) -> str:
    """Return the module in which ``step`` is written. torch wraps the function, and keeps its module."""
    for one in type.__getattribute__(kind, "__mro__"):
        step = type.__getattribute__(one, "__dict__").get("step")
        if step is not None:
            return str(getattr(step, "__module__", ""))
    return ""
