"""Decide which optimizer has the steps that are counted, and distinguish the trainings of a program."""

from __future__ import annotations

import weakref
from collections import Counter
from math import prod
from typing import Any

from gpuledger.collect.adapter.program_objects import (
    class_name,
    known_sizes,
    parameter_groups,
    parameter_ids,
    without_overrides,
)

SWITCH_STEPS = 8
"""Number of steps of another optimizer, without one of the followed one, after which the other one is followed.

Also the number of steps in a row after which a new optimizer is followed at once, because another training begins.
"""


MOST_TRAININGS = 256
"""Number of changes that are kept. A program that makes optimizers in every step has more until its end."""


class FollowedOptimizer:
    """The first optimizer that steps, or the one that replaces it.

    A second optimizer (of a GAN) and one optimizer per parameter do not add steps. If the first optimizer no longer
    exists, or another one has stepped SWITCH_STEPS times since, that one is followed. A new one is followed at once if
    the first has made SWITCH_STEPS steps in a row. If the first goes on, it is followed again. If the program makes a
    new optimizer for the same parameters again and again, the newest one is followed.

    ``trainings`` has a row for each change to an optimizer of another kind: the step that it ends first, and a number
    of the training. Optimizers of one class, with as many parameters of the same total size, are of one training: they
    are those of folds, or one that was made again. Empty with one training, and no longer than MOST_TRAININGS.
    """

    def __init__(self) -> None:
        self.trainings: list[tuple[int, int]] = []
        self._first: weakref.ref[Any] | None = None
        self._replaced: weakref.ref[Any] | None = None
        """The optimizer that was followed before, and is followed again if it steps; None if there is none."""
        self._in_a_row = 0
        """Number of steps of the followed optimizer since one of another."""
        self._other_steps: Counter[int] = Counter()
        self._remade = 0
        """Number of optimizers for parameters of the followed one that came after it."""
        self._kinds: dict[tuple[str, int, int], int] = {}
        self.training = 0
        """Number of the training that is followed."""

    def has_stepped(self, optimizer: Any, step: int, *, is_new: bool) -> bool:
        """Return whether the step of an optimizer is counted.

        Args:
            optimizer: The optimizer that has stepped.
            step: Number of the step that it ends, if it is counted.
            is_new: Whether it has not stepped before.
        """
        first = None if self._first is None else self._first()
        if first is not optimizer:
            self._other_steps[id(optimizer)] += 1
            if first is not None and not self._replaces(first, optimizer, is_new=is_new):
                self._in_a_row = 0
                return False
            self._first, self._in_a_row = weakref.ref(optimizer), 0
            self._begins(optimizer, step)
        self._in_a_row += 1
        self._other_steps.clear()
        return True

    def _begins(self, optimizer: Any, step: int) -> None:
        """Record from which step on an optimizer is followed."""
        if len(self.trainings) >= MOST_TRAININGS:
            return
        with without_overrides():
            sizes = [prod(known_sizes(weight)) for group in parameter_groups(optimizer) for weight in group]
        kind = class_name(type(optimizer)), len(sizes), sum(sizes)
        before, self.training = self.training, self._kinds.setdefault(kind, len(self._kinds))
        if before != self.training:
            self.trainings += [(step, self.training)] if self.trainings else [(1, before), (step, self.training)]

    def _replaces(self, first: Any, optimizer: Any, *, is_new: bool) -> bool:
        """Return whether an optimizer is followed from now on, in the place of the first."""
        is_long, was_followed = self._in_a_row >= SWITCH_STEPS, self._replaced and self._replaced() is optimizer
        if was_followed or (is_new and is_long):
            # An optimizer that has stepped a few times only was no training of its own: it steps beside the first.
            self._replaced = weakref.ref(first) if is_long else None
            return True
        return self._other_steps[id(optimizer)] > SWITCH_STEPS or self._is_remade(first, optimizer, is_new=is_new)

    def _is_remade(self, first: Any, optimizer: Any, *, is_new: bool) -> bool:
        """Return whether the program makes new optimizers for the same parameters: this is the second one, or later."""
        if is_new and parameter_ids(first) & parameter_ids(optimizer):
            self._remade += 1
            return self._remade > 1
        return False
