"""A small training for the drop-in memory profiler, and what is installed while it records."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gpuledger import memory_profiler
from gpuledger.collect.adapter.observer import Observers
from gpuledger.integrations.memory_table import MemoryReport

WIDTH, BATCH = 1000, 64
WEIGHTS = 2 * (WIDTH * WIDTH + WIDTH) * 4
ACTIVATION = BATCH * WIDTH * 4


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def make_step(model: nn.Module, *, set_to_none: bool = True) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        loss = first_tensor(model(torch.randn(BATCH, WIDTH))).sum()
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()

    return step


def first_tensor(result: Any) -> Any:
    while not isinstance(result, torch.Tensor):
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


def reports_of(model: nn.Module, step: Callable[[], None], iterations: int = 3) -> list[MemoryReport]:
    profiler = memory_profiler(model)
    found = []
    for _ in range(iterations):
        step()
        profiler.record_stats()
        assert profiler.last is not None
        found.append(profiler.last)
    return found


def hooks_of(model: nn.Module) -> list[Any]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    found = [dict(getattr(module, kind)) for module in model.modules() for kind in kinds]
    return [*found, *(parameter._post_accumulate_grad_hooks for parameter in model.parameters())]


def observed_by(function: Any) -> tuple[CodeType, list[Any]]:
    """Return a function's code, and what observes it.

    Code that can be observed stays after a test in which the compiler met it: then nothing observes.
    """
    code = function.__code__
    return code, [one for constant in code.co_consts if isinstance(constant, Observers) for one in constant.installed]


def installed() -> tuple[Any, ...]:
    return (
        observed_by(nn.Module.__call__),
        observed_by(torch.autograd.backward),
        torch.autograd.grad,
        dict(_global_optimizer_pre_hooks),
        dict(_global_optimizer_post_hooks),
        torch._C._len_torch_dispatch_stack(),
    )
