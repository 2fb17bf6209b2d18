"""The module of an out-of-memory error in backward, where autograd's thread has no frame of a module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from failing_allocator import FACTS, MIB, Recorded, card, snapshot
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.flight.flight_recorder import FlightRecorder
from gpuledger.model.accounts import Phase

__all__ = ["card"]

pytestmark = pytest.mark.torch


class Asks(TorchDispatchMode):
    """Runs out of memory in one operator."""

    def __init__(self, operator: Any, fails: Callable[[], object]) -> None:
        super().__init__()
        self._operator, self._fails = operator, fails

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._operator:
            self._fails()
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    """Layers with parameters, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(1, 4, 3)
        self.activation = nn.Tanh()
        self.back = nn.Linear(6, 2, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.back(self.activation(self.front(values)))


@pytest.mark.parametrize(
    ("operator", "autocast", "module"),
    [
        (torch.ops.aten.convolution_backward.default, False, "Net.front"),
        (torch.ops.aten.mm.default, False, "Net.back"),
        (torch.ops.aten.mm.default, True, "Net.back"),
        (torch.ops.aten.tanh_backward.default, False, ""),
    ],
    ids=["convolution", "linear", "linear with autocast", "without parameters"],
)
def test_the_module_is_that_of_the_parameters_of_the_running_node(
    operator: Any, autocast: bool, module: str, card: Callable[..., None], tmp_path: Path
) -> None:
    card(snapshot([79 * 1024 * MIB], []), 79 * 1024 * MIB)
    recorded = Recorded(tmp_path)
    net = Net()
    recorded.registry.register(net)
    with torch.autocast("cpu", enabled=autocast):
        loss = net(torch.ones(3, 1, 8)).sum()
    with Asks(operator, lambda: recorded.failures.happened({**FACTS, "tried_bytes": 300 * MIB}, 7)):
        loss.backward()
    assert recorded.explain().module == module


def test_in_the_recorded_steps_it_is_the_module_that_the_thread_has_entered(tmp_path: Path) -> None:
    phases = Phases(lambda _token: None, TagTable())
    phases.start()
    window = SimpleNamespace(is_open=True, phases=phases)
    guard = Guard(lambda error: pytest.fail(str(error)))
    flight = FlightRecorder(RankJournal(lambda: tmp_path, []), ModuleRegistry(), StackTable(), guard)
    flight.begin(lambda: window, on_card=False)  # type: ignore[arg-type, return-value]
    assert flight.failures.module_at_work() == -1
    phases.put(5)
    assert flight.failures.module_at_work() == 5
    found: list[int | None] = []
    weight = torch.ones(1, requires_grad=True)
    with Asks(torch.ops.aten.mul.Tensor, lambda: found.append(flight.failures._module_in_backward())):
        (weight * 2).sum().backward()
    assert found == [None, 5]  # in forward, the frames show it
    phases.change(Phase.BACKWARD, step=2)
    phases.put(6)
    assert flight.failures.module_at_work() == 6
    phases.prefix = phases.tags.begin_visit(3, Phase.BACKWARD)  # in another thread
    assert flight.failures.module_at_work() == -1
    window.is_open = False
    assert flight.failures.module_at_work() == -1
