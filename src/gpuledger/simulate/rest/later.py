"""Work that begins in a later iteration of a loop, such as a second stage if ``epoch >= 30``.

A program's comparisons of counters ask here. Counters are the variables of ``for`` loops, and numbers that are
increased by ``+=``. When a loop would end, its counter is set to the next number with which a comparison has another
result, so that the program does what it would do there. The iterations before it are left out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

_MOST_JUMPS = 8
"""How often the counter of one loop is set."""
_MORE_ITERATIONS = 2
"""Iterations that a loop has after the one to which its counter was set: a new optimizer has its states then."""
_MOST_ELEMENTS = 16
"""Elements of a container with which a counter is compared."""
_EQUAL = ("Eq", "NotEq")
_MEMBER = ("In", "NotIn")
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge,
}  # fmt: skip
COMPARISONS = (*_EQUAL, *_MEMBER, *_ORDERS)
"""Operators of Python's syntax tree that change their result once while a counter increases."""


@dataclass
class _Counter:
    """A number that increases by the same from iteration to iteration.

    Attributes:
        loop: The loop that increases it.
        value: Its value now; None before the first.
        change: By how much it has increased; None if it was seen once.
        more: What is added to the program's own value.
        pending: What is added when it increases next.
        last: Its largest value; None if that is not known.
    """

    loop: int
    value: int | None = None
    change: int | None = None
    more: int = 0
    pending: int = 0
    last: float = math.inf


@dataclass
class _Comparison:
    """A comparison of a counter: the results that it has had, and the numbers at which the result changes."""

    counter: str
    place: str
    results: set[bool] = field(default_factory=set)
    changes: dict[int, int] = field(default_factory=dict)
    """What the counter is compared with -> the counter's value from which the result is another."""
    reached: set[int] = field(default_factory=set)
    """What the counter was compared with when it had that value."""


class LaterWork:
    """Sets the counters of loops to where a comparison has another result."""

    def __init__(self) -> None:
        self._counters: dict[str, _Counter] = {}
        self._comparisons: dict[int, _Comparison] = {}
        self._jumps: dict[int, int] = {}
        self._open: dict[int, int] = {}
        """Loop -> iterations that it has in any case."""

    def is_open(self, loop: int) -> bool:
        """Return whether a loop has more iterations for later work."""
        return bool(self._open.get(loop, 0)) or self._next(loop) is not None

    def loop_begins(self, loop: int, name: str, items: object) -> None:
        """Note that a loop begins, with the name of its counter and what it iterates over."""
        self._counters[name] = _Counter(loop, last=_last_of(getattr(items, "iterable", items)))  # of a progress bar
        self._open.pop(loop, None)

    def counted(self, loop: int, name: str, value: object, by: object = None) -> object:
        """Return the value of a counter, which is another one if it was set.

        Args:
            loop: The loop that increases it.
            name: Its name.
            value: The program's own value.
            by: What it was just increased by with ``+=``; None for the variable of a loop.
        """
        if type(value) is not int or (by is not None and type(by) is not int):
            self._counters.pop(name, None)
            return value
        counter = self._counters.setdefault(name, _Counter(loop))
        counter.loop = loop
        if by is None:
            counter.more += counter.pending
        now = value + (counter.more if by is None else counter.pending)
        if by is not None:
            counter.change = by
        elif counter.value is not None and not counter.pending:
            counter.change = now - counter.value
        counter.value, counter.pending = now, 0
        return now

    def compared(self, number: int, place: str, name: str, left: object, how: str, right: object) -> object:
        """Return the left side of a comparison, and note where its result changes.

        Args:
            number: Number of the comparison.
            place: Its line in the program.
            name: The counter on its left side.
            left: The left side: the counter, or its sum with another number.
            how: One of :data:`COMPARISONS`.
            right: The right side.
        """
        counter = self._counters.get(name)
        if counter is None or counter.value is None or type(left) is not int:
            return left
        known = self._comparisons.setdefault(number, _Comparison(name, place))
        known.changes.clear()
        more = left - counter.value
        if how in _MEMBER:
            elements = list(right)[:_MOST_ELEMENTS] if isinstance(right, (tuple, list, set, range)) else []
            known.changes.update({one: one - more for one in elements if type(one) is int})
        elif how in _EQUAL and type(right) is int:
            known.changes[right] = right - more
        elif how in _ORDERS and isinstance(right, (int, float)) and math.isfinite(right):
            known.results.add(_ORDERS[how](left, right))
            first = math.ceil(right) if how in ("Lt", "GtE") else math.floor(right) + 1
            if len(known.results) == 1:
                known.changes[first] = first - more
        known.reached.update(bound for bound, value in known.changes.items() if value == counter.value)
        return left

    def left_until(self, name: str, left: object, how: str, right: object) -> tuple[int, int] | None:
        """Return the loop that a comparison of its counter ends, and its iterations until then; None if not known.

        A counter that is increased later in the same iteration has one more.
        """
        counter = self._counters.get(name)
        if counter is None or counter.value is None or type(left) is not int or not isinstance(right, (int, float)):
            return None
        if not math.isfinite(right) or not counter.change:
            return None
        last = math.ceil(right) if how in ("Lt", "GtE", "Eq", "NotEq") else math.floor(right) + 1
        return counter.loop, max(-(-(last - left) // counter.change), 0)

    def is_over(self, loop: int) -> bool:
        """Return whether a loop has had its last number, because its counter was set."""
        counters = (counter for counter in self._counters.values() if counter.loop == loop and counter.more)
        return any((counter.value or 0) + (counter.change or 1) > counter.last for counter in counters)

    def goes_on(self, loop: int) -> bool:
        """Return whether a loop that would end has another iteration, because its counter was set before."""
        more = self._open.get(loop, 0)
        self._open[loop] = max(more - 1, 0)
        return more > 0

    def times(self, name: str, period: int) -> float:
        """Return how often a counter will have passed another ``period``; infinite if its last value is not known.

        Args:
            name: The counter, or a sum that begins with it, such as ``step + 1``.
            period: By how much it increases.
        """
        counter = self._counters.get(name.split(" ")[0])
        return math.inf if counter is None or counter.value is None else (counter.last - counter.value) // period

    def jumps(self, loop: int) -> bool:
        """Return whether a loop that would end has another iteration, for which its counter was set."""
        ahead = self._next(loop)
        if ahead is None:
            return False
        value, pending, name = ahead
        self._counters[name].pending = pending
        for known in self._comparisons.values():
            if known.counter == name:
                known.reached.update(bound for bound, at in known.changes.items() if at <= value)
        self._jumps[loop] = self._jumps.get(loop, 0) + 1
        self._open[loop] = _MORE_ITERATIONS
        return True

    def missed(self) -> Iterator[str]:
        """Yield the lines of comparisons that have not had their other result, and the counter's value at which."""
        for known in self._comparisons.values():
            counter = self._counters.get(known.counter)
            if counter is None or counter.value is None:
                continue
            values = [at for bound, at in known.changes.items() if bound not in known.reached]
            later = [at for at in values if counter.value < at <= counter.last]
            if later:
                yield f"{known.place} from {known.counter} = {min(later)} on"

    def _next(self, loop: int) -> tuple[int, int, str] | None:
        """Return the next value at which a comparison of a loop's counter has another result; None if there is none."""
        return None if self._jumps.get(loop, 0) == _MOST_JUMPS else min(self._ahead(loop), default=None)

    def _ahead(self, loop: int) -> Iterator[tuple[int, int, str]]:
        """Yield such values that the loop has not had, what is to be added to reach them, and the counters."""
        for known in self._comparisons.values():
            counter = self._counters.get(known.counter)
            if counter is None or counter.loop != loop or counter.value is None or (counter.change or 0) <= 0:
                continue
            change = counter.change or 1
            for bound, at in known.changes.items():
                steps = -(-(at - counter.value) // change)
                value = counter.value + steps * change
                if steps > 0 and bound not in known.reached and value <= counter.last:
                    yield value, (steps - 1) * change, known.counter


def _last_of(items: object) -> float:
    """Return the largest number with which a loop counts items; infinite if it is not known."""
    if type(items) is range and items and items.step > 0:
        return items[-1]
    if type(items) in (list, tuple) or (
        isinstance(items, DataLoader) and not isinstance(items.dataset, IterableDataset)
    ):
        return len(items) - 1  # type: ignore[arg-type]
    return math.inf
