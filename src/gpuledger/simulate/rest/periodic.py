"""Work that a loop does in some iterations only, such as an evaluation if ``step % 100 == 0``.

The simulated steps are often too few to reach it. A program's conditions with a modulo ask here. After the steps that
were needed, a loop has another iteration, in which conditions hold that have not held since the first step. If the
iteration after it needs more memory, such as after points were added, both are repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_MOST_ITERATIONS = 4
"""Iterations that a loop is given for conditions that exclude each other."""
_MOST_TIMES = 8
"""How often such an iteration is repeated."""
_MORE = 1.005
"""Ratio of two peaks above which an iteration needed more memory."""


@dataclass
class _Condition:
    """A condition of the program.

    Attributes:
        left: The number that was divided last.
        step: The step in which it was, counted from 0.
        change: By how much it changed from step to step; None if it was seen in one step only.
        counts: Whether it has increased by the same number from step to step, as a counter does.
        skipped: Whether iterations were left out since it was seen.
        held: Whether the condition has held after the first step.
        most: How often it can hold in the program's own iterations.
        times: How often it held in iterations that a loop was given.
    """

    left: int
    step: int
    change: int | None = None
    counts: bool = True
    held: bool = False
    most: float = 0
    times: int = 0
    skipped: bool = False

    @property
    def is_due(self) -> bool:
        """Return whether it is expected to hold in a later iteration, and has not."""
        return self.counts and self.change is not None and not self.held

    def see(self, left: int, step: int) -> None:
        """Note the divided number in a step."""
        if self.skipped:
            self.left, self.step, self.skipped = left, step, False
        elif step != self.step:
            change = left - self.left
            self.counts = self.counts and change > 0 and self.change in (None, change)
            self.left, self.step, self.change = left, step, change
        elif left != self.left:
            self.counts = False


class PeriodicWork:
    """Answers a program's conditions with a modulo, and gives loops another iteration.

    Args:
        steps: Returns the number of steps that have ended.
        times: Returns how often a counter, given by its name, will have passed another period.
    """

    def __init__(self, steps: Callable[[], int], times: Callable[[str, int], float]) -> None:
        self._steps = steps
        self._times = times
        self._conditions: dict[int, _Condition] = {}
        self._given: dict[int, int] = {}
        """Loop -> iterations that it was given."""
        self._tried: dict[int, frozenset[int]] = {}
        """Loop -> conditions that were due when it was given its last iteration. Others may be outside the loop."""
        self._loop: int | None = None
        """The loop in such an iteration."""
        self._inside: set[int] = set()
        """Loops that have begun in this iteration."""
        self._worked: set[int] = set()
        """Conditions that were due in it."""
        self._kept_bytes = self._peak_bytes = 0
        """What was allocated before it, and the peak after it."""
        self._settling: int | None = None
        """The loop that has an iteration after it, because more or less is allocated."""
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
            if number not in self._worked:
                self._worked.add(number)
                known.most = known.most if known.times else self._times(name, right)
                known.times += 1
        remainder = self._chosen.get(key, remainder)
        known.held = known.held or (remainder == wanted and step > 0)
        return remainder

    def skipped(self) -> None:
        """Note that a counter was set, so that iterations were left out."""
        for condition in self._conditions.values():
            condition.skipped = True

    def loop_begins(self, loop: int) -> None:
        """Note that a loop begins."""
        if self._loop is not None:
            self._inside.add(loop)

    def gives(self, loop: int, kept_bytes: int, peak_bytes: int) -> bool:
        """Return whether a loop that would end is given another iteration, because conditions are due.

        Args:
            loop: The loop.
            kept_bytes: What is allocated now.
            peak_bytes: The peak until now.
        """
        if self._loop is not None and loop in self._inside:
            return False
        if self._settling == loop:
            self._settling = None
            return peak_bytes > self._peak_bytes * _MORE and self._repeats(loop, kept_bytes)
        was_given, self._loop = self._loop, None
        self._inside.clear()
        self._chosen.clear()
        if was_given == loop and kept_bytes != self._kept_bytes:
            self.skipped()
            self._settling, self._peak_bytes = loop, peak_bytes
            return True
        due = frozenset(number for number, condition in self._conditions.items() if condition.is_due)
        if not due or due == self._tried.get(loop) or self._given.get(loop, 0) == _MOST_ITERATIONS:
            return False
        self._tried[loop] = due
        self._given[loop] = self._given.get(loop, 0) + 1
        self._give(loop, kept_bytes)
        return True

    def _give(self, loop: int, kept_bytes: int) -> None:
        self._loop, self._kept_bytes = loop, kept_bytes
        self._worked.clear()

    def _repeats(self, loop: int, kept_bytes: int) -> bool:
        """Return whether the conditions of the last iteration hold again, as often as in the program's iterations."""
        again = [self._conditions[number] for number in self._worked]
        again = [condition for condition in again if condition.times < min(condition.most, _MOST_TIMES)]
        for condition in again:
            condition.held = False
        if again:
            self._give(loop, kept_bytes)
        return bool(again)
