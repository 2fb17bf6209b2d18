"""Weights that a program updates by itself have, in an estimate, the optimizer state of a recorded run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

import gpuledger  # noqa: E402
from gpuledger.analyze.memory.breakdown import break_down  # noqa: E402
from gpuledger.analyze.memory.instant import find_peak  # noqa: E402
from gpuledger.collect.attribution.module_registry import ModuleRegistry  # noqa: E402
from gpuledger.collect.attribution.phases import ModuleContext  # noqa: E402
from gpuledger.collect.attribution.tags import TagTable  # noqa: E402
from gpuledger.simulate.estimate.recorder import SimulatedRecorder  # noqa: E402
from gpuledger.simulate.gpu.device import SimulatedDevice  # noqa: E402

WEIGHT_BYTES = 256 * 512 * 4

Update = Callable[[Tensor, Any], None]


def momentum() -> Update:
    """Return an update with one moving average of gradients, which it makes at the first call."""
    kept: dict[int, Tensor] = {}

    def update(weight: Tensor, gradient: Any) -> None:
        average = kept.setdefault(id(weight), torch.zeros_like(weight))
        average.mul_(0.9).add_(gradient)
        weight.sub_(average, alpha=0.1)

    return update


def two_averages() -> Update:
    """Return an update with two moving averages, each step's in the place of those before."""
    averages: list[Tensor] = []

    def update(weight: Tensor, gradient: Any) -> None:
        first, second = averages or (torch.zeros_like(weight), torch.zeros_like(weight))
        averages[:] = first * 0.9 + gradient * 0.1, second * 0.99 + gradient.square() * 0.01
        weight.sub_(averages[0] / (averages[1].sqrt() + 1e-8), alpha=1e-3)

    return update


def plain() -> Update:
    """Return an update that keeps nothing, beside a slow copy of the weight."""
    copies: list[Tensor] = []

    def update(weight: Tensor, gradient: Any) -> None:
        weight.sub_(gradient, alpha=0.1)
        copies[:] = copies or [weight.clone()]
        copies[0].mul_(0.9).add_(weight, alpha=0.1)

    return update


def bytes_by_category(make: Callable[[], Update]) -> dict[str, int]:
    """Return the peak of three trained steps, by category. At the peak, 64 MiB more are there than ever before."""
    model = nn.Linear(256, 512, bias=False)
    update = make()

    def step(rows: Tensor) -> None:
        model.zero_grad()
        model(rows).mean().backward()
        with torch.no_grad():
            update(model.weight, model.weight.grad)
        torch.zeros(1 << 24, device="cuda")

    rank = gpuledger.estimate(step, torch.zeros(8, 256), steps=4).run.rank(0)
    accounts = break_down(rank, find_peak(rank), by=("category",)).accounts
    return {account.category: account.bytes for account in accounts}


@pytest.mark.parametrize(("make", "weights"), [(momentum, 1), (two_averages, 2), (plain, 0)])
def test_what_updates_share_is_optimizer_state(make: Callable[[], Update], weights: int) -> None:
    found = bytes_by_category(make)
    assert found["weight"] == found["gradient"] == WEIGHT_BYTES
    assert found.get("optimizer_state", 0) == weights * WEIGHT_BYTES


class Seen:
    """Keeps the operators and the ends of storages that it is told."""

    is_on = True

    def __init__(self) -> None:
        self.operators: list[str] = []
        self.freed: list[int] = []
        self.address_of: Callable[[Tensor], int] = lambda _: 0

    def see(self, operator: object, results: object, arguments: Sequence[object]) -> None:
        """Keep an operator's name."""
        self.operators.append(str(operator))

    def forget(self, address: int) -> None:
        """Keep an address."""
        self.freed.append(address)


def test_operators_on_the_gpu_and_ends_of_storages_are_told(device: SimulatedDevice) -> None:
    seen = Seen()
    SimulatedRecorder(device, TagTable(), ModuleContext(ModuleRegistry())).follow(seen)
    first, second = torch.zeros(8, device="cuda"), torch.zeros(8)
    addresses = [seen.address_of(first), seen.address_of(first[2:]), seen.address_of(second)]
    assert addresses[0] == addresses[1] > addresses[2] == 0
    second.add_(1)
    first.add_(1)
    assert seen.operators[-1] == "aten.add_.Tensor"
    assert seen.operators.count("aten.add_.Tensor") == 1
    first.untyped_storage().resize_(1 << 20)
    assert seen.freed == addresses[:1]
    moved = seen.address_of(first)
    del first
    assert seen.freed == [addresses[0], moved]
