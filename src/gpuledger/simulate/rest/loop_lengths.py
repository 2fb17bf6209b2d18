"""How many iterations the loops of a program have, and how many training steps are left in them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import FrameType

from torch.utils.data import DataLoader, IterableDataset

_SIZED = (range, list, tuple, dict, set, frozenset, str, bytes)


@dataclass
class _Activation:
    """A loop that runs.

    Attributes:
        loop: Its number.
        last_line: Its last line.
        steps: Training steps before it.
        frame: The function's activation, by identity and code.
        total: Its iterations; None if that is not known.
        begun: Iterations that have begun.
        steps_at_last: Training steps before the last of them.
    """

    loop: int
    last_line: int
    steps: int
    frame: tuple[int, object]
    total: int | None = None
    begun: int = 0
    steps_at_last: int = 0


@dataclass(frozen=True)
class LoopLeft:
    """A loop with training steps: its number, and the steps in its other iterations; None if that is not known."""

    loop: int
    steps_left: int | None


class LoopLengths:
    """Knows the loops that run, the innermost last, and their numbers of iterations."""

    def __init__(self) -> None:
        self._running: list[_Activation] = []
        self._limits: dict[int, int] = {}
        """Loop -> iterations after this one until a condition on its counter ends it."""

    def begins(self, loop: int, last_line: int, steps: int, around: int | None, frame: FrameType) -> None:
        """Note that a loop begins.

        Args:
            loop: Its number.
            last_line: Its last line.
            steps: Training steps before it.
            around: The loop around it in the same function; None if there is none. Others of the function have ended.
            frame: The function's activation. Loops of functions that have returned, and of lines before, have ended.
        """
        self._limits.pop(loop, None)
        if self._running and _is_inside(self._running[-1], around, frame):
            self._running.append(_Activation(loop, last_line, steps, _identity(frame)))
            return
        lines = _lines_of(frame)
        own = _identity(frame)
        running = [one for one in self._running if lines.get(one.frame, math.inf) <= one.last_line and one.loop != loop]
        places = [place for place, one in enumerate(running) if one.frame == own]
        if places:
            inner = [place for place in places if running[place].loop == around]
            del running[inner[0] + 1 if inner else places[0] :]
        self._running = [*running, _Activation(loop, last_line, steps, own)]

    def has(self, loop: int, items: object) -> None:
        """Note what a loop iterates over. One over several at once ends with the shortest."""
        known, length = self._find(loop), length_of(items)
        if known is not None and length is not None:
            one = self._running[known]
            one.total = length if one.total is None else min(one.total, length)

    def iterates(self, loop: int, steps: int) -> None:
        """Note that an iteration of a loop begins after that many steps."""
        known = self._find(loop)
        if known is None:
            return
        del self._running[known + 1 :]
        one = self._running[known]
        one.begun, one.steps_at_last = one.begun + 1, steps
        if loop in self._limits:
            self._limits[loop] -= 1

    def ends_after(self, loop: int, iterations: int) -> None:
        """Note that a condition ends a loop after that many further iterations."""
        self._limits[loop] = iterations

    def with_steps(self, steps: int) -> list[LoopLeft]:
        """Return the loops around the training step that has ended as the ``steps``-th, the innermost first."""
        found: list[LoopLeft] = []
        inner: int | None = 1  # steps in a whole iteration of the loop
        for one in reversed(self._running):
            if steps == one.steps or (not found and one.steps_at_last == one.steps):
                continue  # it has no steps, or only one iteration with steps, as far as is known
            if not found:
                inner = round((one.steps_at_last - one.steps) / max(one.begun - 1, 1)) or 1
            left = self._iterations_left(one)
            found.append(LoopLeft(one.loop, None if left is None or inner is None else left * inner))
            inner = None if one.total is None or inner is None else one.total * inner
        return found

    def with_iterations(self, loop: int) -> list[LoopLeft]:
        """Return a loop and those around it, the innermost first, with its iterations as steps.

        One of its iterations has just begun, which is left, too.
        """
        place, found = self._find(loop), list[LoopLeft]()
        inner: int | None = 1  # iterations of the loop in a whole one of this loop
        for one in reversed(self._running[: 0 if place is None else place + 1]):
            left = self._iterations_left(one)
            more = None if left is None else left + (not found)
            found.append(LoopLeft(one.loop, None if more is None or inner is None else more * inner))
            inner = None if one.total is None or inner is None else one.total * inner
        return found

    def is_last(self, loop: int) -> bool:
        """Return whether a loop is in its last iteration, as far as is known."""
        return self.iterations_left(loop) == 0

    def iterations_left(self, loop: int) -> int | None:
        """Return the iterations of a loop after the one that has begun; None if their number is not known."""
        known = self._find(loop)
        return None if known is None else self._iterations_left(self._running[known])

    def _iterations_left(self, one: _Activation) -> int | None:
        totals = [] if one.total is None else [one.total - one.begun]
        limits = [self._limits[one.loop]] if one.loop in self._limits else []
        return max(min(totals + limits), 0) if totals or limits else None

    def _find(self, loop: int) -> int | None:
        """Return the place of a running loop; None if it does not run."""
        return next((place for place, one in enumerate(self._running) if one.loop == loop), None)


def _identity(frame: FrameType) -> tuple[int, object]:
    """Return what identifies an activation without keeping it."""
    return id(frame), frame.f_code


def _is_inside(innermost: _Activation, around: int | None, frame: FrameType) -> bool:
    """Return whether a loop begins directly in the innermost one, or in a function that this one calls directly.

    Most loops do, and then the activations need not be compared.
    """
    if around is not None:
        return innermost.loop == around and innermost.frame == _identity(frame)
    caller = frame.f_back
    return caller is not None and innermost.frame == _identity(caller) and caller.f_lineno <= innermost.last_line


def _lines_of(frame: FrameType | None) -> dict[tuple[int, object], int]:
    """Return the lines that run, by what identifies their activation."""
    found: dict[tuple[int, object], int] = {}
    while frame is not None:
        found[_identity(frame)] = frame.f_lineno
        frame = frame.f_back
    return found


def length_of(items: object) -> int | None:
    """Return the number of items of a container, a loader or a progress bar; None if it is not known."""
    items = getattr(items, "iterable", items)
    if isinstance(items, DataLoader):
        return None if isinstance(items.dataset, IterableDataset) else len(items)
    return len(items) if isinstance(items, _SIZED) else None
