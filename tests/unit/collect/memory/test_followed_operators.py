"""Updates that a program writes itself, followed by a dispatch mode that is there between two passes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.memory.followed_operators import FollowedOperators
from gpuledger.collect.variables.updates import WeightUpdates
from gpuledger.model.accounts import Identity

pytestmark = pytest.mark.torch


class Training:
    """A layer that is trained without an optimizer of PyTorch, with the operators after its backward followed."""

    def __init__(self) -> None:
        self.model = nn.Linear(32, 4, bias=False)
        self.optimizers: list[object] = []
        self.made: list[object] = []
        """Optimizers that a search finds."""
        self.errors: list[BaseException] = []
        registry = ModuleRegistry()
        registry.register(self.model)
        self.seen = TensorObservations(registry, lambda _devices: {}, lambda tensor: (-1, tensor.data_ptr()))
        self.updates = WeightUpdates(self.seen, Phases(lambda _token: None, TagTable()))
        self.seen.on_gradients = lambda found: self.updates.gradients_seen(found, registered=True)
        self.followed = FollowedOperators(self.updates, Guard(self.errors.append), self.optimizers, self.look)
        self.followed.follow()

    def look(self) -> None:
        """Find the optimizers that were made."""
        self.optimizers += self.made

    def step(self, update: Callable[[Tensor, Any], None]) -> None:
        """Call the model and its backward, and update its weight."""
        self.followed.end()
        self.model.zero_grad()
        self.model(torch.ones(4, 32)).square().sum().backward()
        self.seen.see_gradients()
        with torch.no_grad():
            update(self.model.weight, self.model.weight.grad)

    def states(self) -> set[int]:
        """Return the addresses of what was seen as optimizer state."""
        return {row[1] for row in self.seen._rows if row[2] == Identity.OPTIMIZER_STATE}


@pytest.fixture
def training() -> Iterator[Training]:
    found = Training()
    yield found
    found.followed.retire()
    assert found.errors == []
    assert not _get_current_dispatch_mode_stack()


def momentum_of(training: Training) -> tuple[Tensor, Callable[[Tensor, Any], None]]:
    momentum = torch.zeros_like(training.model.weight)

    def update(weight: Tensor, gradient: Any) -> None:
        momentum.mul_(0.9).add_(gradient)
        weight.sub_(momentum, alpha=0.01)

    return momentum, update


def test_state_is_what_two_updates_share(training: Training) -> None:
    momentum, update = momentum_of(training)
    for _ in range(3):
        training.step(update)
    assert training.states() == {momentum.data_ptr()}


def test_the_mode_is_there_between_backward_and_the_next_call(training: Training) -> None:
    _, update = momentum_of(training)
    modes: list[int] = []
    for _ in range(3):
        training.step(lambda *given: (modes.append(len(_get_current_dispatch_mode_stack())), update(*given))[1])
    training.followed.end()
    assert modes == [0, 1, 1]  # an optimizer is often known after its first step
    assert not _get_current_dispatch_mode_stack()


@pytest.mark.parametrize("where", ["optimizers", "made"])
def test_a_program_with_an_optimizer_of_pytorch_is_not_followed(training: Training, where: str) -> None:
    momentum, update = momentum_of(training)
    getattr(training, where).append(object())
    for _ in range(3):
        training.step(lambda *given: (_no_mode(), update(*given))[1])
    assert training.states() == set()
    assert momentum.any()


def _no_mode() -> None:
    assert not _get_current_dispatch_mode_stack()


def test_a_mode_of_the_program_stays_the_innermost_one(training: Training) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Own(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    _, update = momentum_of(training)
    with Own() as own:
        for _ in range(3):
            training.step(update)
            assert _get_current_dispatch_mode_stack() == [own]


def test_what_was_freed_is_forgotten(training: Training) -> None:
    momentum, update = momentum_of(training)
    for _ in range(2):
        training.step(update)
    address = momentum.untyped_storage().data_ptr()
    assert address in training.updates._contents
    del momentum, update
    training.followed.begin()
    assert address not in training.updates._contents
