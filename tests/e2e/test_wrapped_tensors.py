"""Bytes of tensors that wrap others are those that PyTorch's profiler sees: jagged tensors, pairs of tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nested import nested_tensor
from torch.testing._internal.two_tensor import TwoTensor

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.view.view import build_view

pytestmark = pytest.mark.torch

ROUNDING_BYTES = 256
"""Scalars, such as the loss: the profiler's sum begins after the last step has ended."""


class Net(nn.Module):
    def __init__(self, pack: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.up.weight = nn.Parameter(pack(self.up.weight.detach().clone()))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(given)))


def plain() -> tuple[Net, Callable[[], torch.Tensor]]:
    return Net(lambda weight: weight), lambda: torch.randn(1200, 64)


def pairs() -> tuple[Net, Callable[[], torch.Tensor]]:
    return Net(lambda weight: TwoTensor(weight, weight.clone())), lambda: torch.randn(1200, 64)


def jagged() -> tuple[Net, Callable[[], torch.Tensor]]:
    def ragged() -> torch.Tensor:
        return nested_tensor([torch.randn(length, 64) for length in (100, 400, 700)], layout=torch.jagged)

    return Net(lambda weight: weight), ragged


def held_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of the two in it."""
    return held_bytes(value.a) + held_bytes(value.b) if isinstance(value, TwoTensor) else int(value.nbytes)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", [plain, pairs, jagged])
def test_the_peak_is_that_of_the_profiler(
    kind: Callable[[], tuple[Net, Callable[[], torch.Tensor]]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net, batch = kind()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        result = net(batch())
        (result.values() if result.is_nested else result).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    gc.collect()  # models of earlier tests are not among what is recorded, and not freed while the profiler sums up
    with gpuledger.record(out=tmp_path / "wrapped.ledger", passes="memory", steps=(1, 3)):
        for _ in range(3):
            step()
    device = build_view(gpuledger.load(tmp_path / "wrapped.ledger")).highest
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as seen:
        step()
    changes = [
        (event.start_ns(), event.nbytes())
        for event in seen.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    now_bytes = most_bytes = sum(map(held_bytes, net.parameters()))
    for _, change_bytes in sorted(changes, key=lambda one: one[0]):
        now_bytes += change_bytes
        most_bytes = max(most_bytes, now_bytes)
    assert device.breakdown.allocated_bytes == pytest.approx(most_bytes, abs=ROUNDING_BYTES)
    by_category = break_down(device.rank, device.breakdown.instant, ("category",)).accounts
    amounts = {account.category: account.bytes for account in by_category}
    assert amounts["weight"] == sum(map(held_bytes, net.parameters()))
    assert amounts["activation"] > amounts["weight"]
