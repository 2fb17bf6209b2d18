"""Which optimizer has the steps that are counted, and which steps are of one training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from gpuledger.collect.steps.followed_optimizer import MOST_TRAININGS, SWITCH_STEPS, FollowedOptimizer


def trainings_of(*optimizers: Optimizer) -> list[tuple[int, int]]:
    """Return the trainings if these optimizers step in turn."""
    followed, step, known = FollowedOptimizer(), 1, set[int]()
    for one in optimizers:
        step += followed.has_stepped(one, step, is_new=id(one) not in known)
        known.add(id(one))
    return followed.trainings


def optimizer_of(size: int, kind: Callable[..., Optimizer] = SGD) -> Optimizer:
    return kind([nn.Parameter(torch.ones(size))], lr=0.1)


def test_a_training_begins_with_an_optimizer_of_another_size_or_class() -> None:
    first, larger, other = optimizer_of(2), optimizer_of(4), optimizer_of(2, Adam)
    assert trainings_of(*[first] * 20) == []
    assert trainings_of(*[first] * 10, *[larger] * 10) == [(1, 0), (11, 1)]
    assert trainings_of(*[first] * 10, *[other] * 10, *[first] * 5) == [(1, 0), (11, 1), (21, 0)]


def test_optimizers_that_are_alike_are_of_one_training() -> None:
    """As those of the folds of a cross-validation, or one that is made again in every step."""
    folds = [optimizer_of(2) for _ in range(3)]
    assert trainings_of(*(one for one in folds for _ in range(10))) == []
    weight = nn.Parameter(torch.ones(2))
    assert trainings_of(*(SGD([weight], lr=0.1) for _ in range(10))) == []


def test_a_second_optimizer_beside_the_first_is_no_training() -> None:
    first, second = optimizer_of(2), optimizer_of(4)
    assert trainings_of(*[first, second] * 20) == []
    assert trainings_of(*[first] * (SWITCH_STEPS - 1), *[second, first] * 9) == []


def test_the_training_of_a_freed_optimizer_is_told_apart() -> None:
    followed = FollowedOptimizer()
    assert followed.has_stepped(optimizer_of(2), 1, is_new=True)
    assert followed.has_stepped(optimizer_of(4), 2, is_new=True)
    assert followed.trainings == [(1, 0), (2, 1)]


def test_a_program_that_makes_optimizers_without_end_keeps_a_limited_number_of_changes() -> None:
    """As a meta-learning does in its inner loop. The journal has them until the program ends."""
    followed = FollowedOptimizer()
    for step in range(1, 2 * MOST_TRAININGS):
        assert followed.has_stepped(optimizer_of(2 + step % 2), step, is_new=True)
    assert len(followed.trainings) == MOST_TRAININGS
    assert followed.trainings[:3] == [(1, 0), (2, 1), (3, 0)]
