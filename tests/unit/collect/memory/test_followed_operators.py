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
from gpuledger.collect.attribution.modules import ModuleTracker
from gpuledger.collect.attribution.phases import Phases
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.collect.memory.followed_operators import FollowedOperators
from gpuledger.collect.variables.updates import WeightUpdates
from gpuledger.model.accounts import Identity, Phase

pytestmark = pytest.mark.torch


class Training:
    """A layer that is trained without an optimizer of PyTorch, with the operators after its backward followed."""

    def __init__(self) -> None:
        self.model = nn.Linear(32, 4, bias=False)
        self.optimizers: list[object] = []
        self.made: list[object] = []
        """Optimizers that a search finds."""
        self.errors: list[BaseException] = []
        self.searches = 0
        registry, guard = ModuleRegistry(), Guard(self.errors.append)
        registry.register(self.model)
        self.seen = TensorObservations(registry, lambda _devices: {}, lambda tensor: (-1, tensor.data_ptr()))
        self.phases = Phases(lambda _token: None, TagTable())
        self.updates = WeightUpdates(self.seen, self.phases)
        self.seen.on_gradients = lambda found: self.updates.gradients_seen(found, registered=True)
        self.followed = FollowedOperators(self.updates, guard, self.optimizers, self.look)
        self.tracker = ModuleTracker(
            self.phases,
            registry,
            on_outermost=self.called,
            on_outermost_end=lambda *_: None,
            on_backward_end=lambda: self.seen.see_gradients(),
            guard=guard,
        )
        self.followed.follow(self.tracker)
        self.phases.start()
        self.tracker.install()

    def called(self, *_: Any) -> None:
        """Follow nothing in a call of the model, as the memory recording does."""
        self.followed.end()

    def look(self) -> None:
        """Find the optimizers that were made, and look at gradients, as a search does."""
        self.searches += 1
        self.optimizers += self.made
        self.seen.see_gradients()

    def step(self, update: Callable[[Tensor, Any], None]) -> None:
        """Call the model and its backward, and update its weight."""
        self.model.zero_grad()
        self.model(torch.ones(4, 32)).square().sum().backward()
        with torch.no_grad():
            update(self.model.weight, self.model.weight.grad)

    def states(self) -> set[int]:
        """Return the addresses of what was seen as optimizer state."""
        return {row[1] for row in self.seen._rows if row[2] == Identity.OPTIMIZER_STATE}


@pytest.fixture
def training() -> Iterator[Training]:
    found = Training()
    try:
        yield found
    finally:
        found.tracker.remove()
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
    assert modes == [0, 1, 1]  # an optimizer is often known after its first step
    hook = training.model.register_forward_hook(lambda *_: modes.append(len(_get_current_dispatch_mode_stack())))
    loss = training.model(torch.ones(4, 32)).sum()
    hook.remove()
    assert modes[3:] == [0]
    training.step(update)
    assert len(_get_current_dispatch_mode_stack()) == 1
    loss.register_hook(lambda _: modes.append(len(_get_current_dispatch_mode_stack())))
    loss.backward()
    assert modes[4:] == [0]


def test_a_pass_is_counted_at_its_end_and_nowhere_else(training: Training) -> None:
    phases: list[Phase] = []
    begin = training.tracker.on_backward_left

    def note() -> None:
        phases.append(training.phases.phase)
        begin()

    training.tracker.on_backward_left = note
    _, update = momentum_of(training)
    training.step(update)
    for _ in range(3):  # the end of a step, a recording that opens, an optimizer that is met
        training.seen.see_gradients()
    assert phases == [Phase.BETWEEN]
    assert training.searches == 0
    assert not _get_current_dispatch_mode_stack()
    training.step(update)
    assert phases == [Phase.BETWEEN, Phase.BETWEEN]
    assert training.searches == 1
    training.step(update)
    assert training.searches == 1


def test_gradients_that_the_search_sees_do_not_begin_again(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    depths: list[int] = []
    depth = 0
    begin = FollowedOperators.begin

    def nested(followed: FollowedOperators) -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        try:
            begin(followed)
        finally:
            depth -= 1

    monkeypatch.setattr(FollowedOperators, "begin", nested)
    training.followed.follow(training.tracker)
    _, update = momentum_of(training)
    for _ in range(3):
        training.step(update)
    assert depths == [1, 1, 1]


def test_a_pass_inside_a_module_is_not_followed(training: Training) -> None:
    momentum, update = momentum_of(training)
    modes: list[int] = []

    def differentiate(_module: nn.Module, _args: Any, result: Tensor) -> None:
        if result.requires_grad:
            torch.autograd.grad(result.sum(), training.model.weight, retain_graph=True)
            modes.append(len(_get_current_dispatch_mode_stack()))

    for _ in range(3):
        training.step(update)
    training.model.register_forward_hook(differentiate)
    training.step(update)
    assert modes == [0]
    assert len(_get_current_dispatch_mode_stack()) == 1
    assert training.states() == {momentum.data_ptr()}


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
    training.tracker.on_backward_left()
    assert address not in training.updates._contents


def test_gradients_of_another_thread_can_come_while_those_left_are_noted(training: Training) -> None:
    """A second thread is here what is called in the middle of the first one's work."""
    kept = torch.zeros(128)

    def keep_a_part(weight: Tensor, gradient: Any) -> None:
        kept.copy_(gradient.flatten())
        weight.sub_(gradient)

    for _ in range(2):
        training.step(keep_a_part)
    other, added = nn.Linear(3, 3), list[int]()
    plain = training.seen.add_row

    def add_row(row: Any) -> None:
        plain(row)
        if not added:
            added.append(1)
            for weight in other.parameters():
                training.updates.gradients_seen([(-1, -1, weight, torch.ones_like(weight))], registered=False)

    training.seen.add_row = add_row  # type: ignore[method-assign]
    training.step(keep_a_part)
    assert added
