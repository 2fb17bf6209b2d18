"""Work that a loop does in some iterations only, such as an evaluation if ``step % 100 == 0``.

The simulated steps are often too few to reach it. A program's conditions with a modulo ask here. After the steps that
were needed, a loop has another iteration, in which conditions hold that have not held since the first step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_MOST_ITERATIONS = 4
"""Iterations that a loop is given for conditions that exclude each other."""


@dataclass
class _Condition:
    """A condition of the program.

    Attributes:
        left: The number that was divided last.
        step: The step in which it was, counted from 0.
        change: By how much it changed from step to step; None if it was seen in one step only.
        counts: Whether it has increased by the same number from step to step, as a counter does.
        held: Whether the condition has held after the first step.
    """

    left: int
    step: int
    change: int | None = None
    counts: bool = True
    held: bool = False

    @property
    def is_due(self) -> bool:
        """Return whether it is expected to hold in a later iteration, and has not."""
        return self.counts and self.change is not None and not self.held

    def see(self, left: int, step: int) -> None:
        """Note the divided number in a step."""
        if step != self.step:
            change = left - self.left
            self.counts = self.counts and change > 0 and self.change in (None, change)
            self.left, self.step, self.change = left, step, change
        elif left != self.left:
            self.counts = False


class PeriodicWork:
    """Answers a program's conditions with a modulo, and gives loops another iteration.

    Args:
        steps: Returns the number of steps that have ended.
    """

    def __init__(self, steps: Callable[[], int]) -> None:
        self._steps = steps
        self._conditions: dict[int, _Condition] = {}
        self._given: dict[int, int] = {}
        """Loop -> iterations that it was given."""
        self._tried: dict[int, frozenset[int]] = {}
        """Loop -> conditions that were due when it was given its last iteration. Others may be outside the loop."""
        self._loop: int | None = None
        """The loop in such an iteration."""
        self._inside: set[int] = set()
        """Loops that have begun in this iteration."""
        self._chosen: dict[tuple[str, int], int] = {}
        """What is divided, and by what -> the result of the modulo in this iteration."""

    def remainder(self, number: int, name: str, left: object, right: object, wanted: object) -> object:
        """Return ``left % right``, or the wanted result if a condition is due in an iteration that was given for it.

        Args:
            number: Number of the condition.
            name: What is divided. All conditions on it have the same result.
            left: Its value.
            right: The divisor.
            wanted: The result with which the condition holds.
        """
        remainder: object = left % right  # type: ignore[operator]
        if not (type(left) is type(right) is type(wanted) is int) or not 0 <= wanted < right or right < 2:
            return remainder
        step, key = self._steps(), (name, right)
        known = self._conditions.get(number)
        if known is None:
            known = self._conditions[number] = _Condition(left, step)
        if self._loop is None:
            known.see(left, step)
        elif known.is_due:
            self._chosen.setdefault(key, wanted)
        remainder = self._chosen.get(key, remainder)
        known.held = known.held or (remainder == wanted and step > 0)
        return remainder

    def loop_begins(self, loop: int) -> None:
        """Note that a loop begins."""
        if self._loop is not None:
            self._inside.add(loop)

    def gives(self, loop: int) -> bool:
        """Return whether a loop that would end is given another iteration, because conditions are due."""
        if self._loop is not None and loop in self._inside:
            return False
        self._loop = None
        self._inside.clear()
        self._chosen.clear()
        due = frozenset(number for number, condition in self._conditions.items() if condition.is_due)
        if not due or due == self._tried.get(loop) or self._given.get(loop, 0) == _MOST_ITERATIONS:
            return False
        self._tried[loop], self._loop = due, loop
        self._given[loop] = self._given.get(loop, 0) + 1
        return True
