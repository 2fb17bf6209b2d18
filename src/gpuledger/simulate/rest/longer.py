"""Add the memory of steps that are not simulated, if each step keeps as much as the one before.

The blocks that a step has kept are allocated again for each of the other steps, before the last simulated step. They
stay as long as those of that step: a program that drops what it has collected drops them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.rest.loop_lengths import LoopLeft

STEPS_LEFT = "steps that are not simulated"
"""Name of their memory in a run."""
_MOST_BLOCKS = 16_384
"""Blocks that are allocated; with more, each is larger."""


class SteadyGrowth(Protocol):
    """Memory that each step keeps."""

    @property
    def kept_blocks(self) -> tuple[tuple[int, int], ...]:
        """Address and bytes of what one of the last steps has kept; empty if the steps differ."""

    @property
    def bytes_per_step(self) -> int:
        """Bytes that a step keeps."""

    @property
    def steps_left(self) -> int | None:
        """Steps after which no more is kept; None without a limit."""

    @property
    def kept_in(self) -> tuple[str, ...]:
        """Names of the container that keeps it; empty if that is not known."""

    @property
    def kept_by(self) -> str:
        """Name of the class of the object with the container; "" if it is no attribute."""


class GrowthSeen(Protocol):
    """Finds out whether each of several iterations leaves more allocated than the one before."""

    @property
    def needs_more(self) -> bool:
        """Return whether more iterations are needed to know."""

    def see(self, step: int) -> None:
        """Note what is allocated after an iteration."""

    def found(self, step: int) -> SteadyGrowth | None:
        """Return what each iteration keeps; None if one of the last has kept nothing."""


class GrowingLoops:
    """Finds loops of which each iteration keeps memory, such as the results of an epoch, if no step does.

    Args:
        watch: Returns what looks at one loop, given its place.
    """

    def __init__(self, watch: Callable[[str], GrowthSeen]) -> None:
        self.growth: SteadyGrowth | None = None
        """What each iteration of a loop keeps, when that is known."""
        self._watch = watch
        self._watches: dict[int, GrowthSeen] = {}
        self._ended: dict[int, int] = {}

    def iterations(self, loop: int) -> int:
        """Return how many iterations of a loop have ended since it was looked at."""
        return self._ended.get(loop, 0)

    def needs_more(self, loop: int) -> bool:
        """Return whether the last iterations of a loop have each kept memory, and more are needed to be certain."""
        return loop in self._watches and self._watches[loop].needs_more

    def iterated(self, loop: int, place: Callable[[], str]) -> SteadyGrowth | None:
        """Return what each iteration keeps, at the end of one, when that is first known. ``place`` is called once."""
        if self.growth is not None:
            self._ended[loop] = self.iterations(loop) + 1
            return None
        if loop not in self._watches:
            self._watches[loop] = self._watch(place())
        count = self._ended[loop] = self.iterations(loop) + 1
        self._watches[loop].see(count)
        found = self._watches[loop].found(count)
        self.growth = found if found is not None and found.kept_blocks else None
        return self.growth


class LongerLoops:
    """Gives loops one more iteration, in which the memory of all their other steps is allocated.

    Args:
        device: The GPU.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self.steps = 0
        """Steps that are not simulated, but the memory of which is."""
        self.steps_left: int | None = None
        """Steps that the loops have after those that were needed; None if that is not known."""
        self.limited, self.classes = set[str](), set[str]()
        """Names of the program's containers that may have a limit, and of its classes.

        A container of a library's class has a limit more often than not.
        """
        self._device = device
        self._loops: list[LoopLeft] = []
        self._blocks: tuple[tuple[int, int], ...] = ()
        self._most_steps: int | None = None
        self._open: int | None = None
        """The loop that has another iteration."""
        self._innermost: int | None = None
        self._waits = False
        """Whether a loop is in its last iteration, and waits for a step of it."""
        self._is_last = False
        """Whether the iteration that has begun is the last one of the loop that follows."""
        self._is_unknown = False
        self._count: Callable[[], int] = lambda: device.steps
        """Returns the number of steps until now, or of iterations of a loop, each of which keeps memory."""
        self._begun_at = 0
        self._bytes_per_step = 0

    @property
    def is_open(self) -> bool:
        """Return whether a loop has another iteration, and its data loader another batch."""
        return self._open is not None

    def opens(self, loop: int) -> bool:
        """Return whether a loop has one more iteration, which is its last."""
        return loop == self._open

    @property
    def knows(self) -> bool:
        """Return whether the growth of each step is known."""
        return self._bytes_per_step > 0

    @property
    def grown_bytes(self) -> int:
        """Return by how much steps have raised the peak since their growth was known. No loop goes on for that."""
        return self._bytes_per_step * (self.steps + self._count() - self._begun_at) if self.knows else 0

    @property
    def has_all(self) -> bool:
        """Return whether the memory of all steps is simulated, as far as the program still keeps that of the first."""
        return bool(self._blocks) and not self._is_unknown and not (self._loops and self._is_kept())

    def begin(self, growth: SteadyGrowth, loops: Sequence[LoopLeft], count: Callable[[], int] | None = None) -> None:
        """Add the steps of the innermost loop. Those of the loops around it follow in their last iterations.

        Iterations of a loop are its steps if ``count`` returns how many there were.
        """
        self._count = count or self._count
        left = [one.steps_left for one in loops if one.steps_left is not None]
        self.steps_left = sum(left) if left and len(left) == len(loops) else None
        self._most_steps = growth.steps_left
        self._begun_at, self._bytes_per_step = self._count(), growth.bytes_per_step
        if growth.steps_left is not None or self._may_grow_on(growth):
            self._blocks = growth.kept_blocks
            self._loops = list(loops) if self._blocks else []
        self._innermost = loops[0].loop if loops else None
        if self._blocks:
            self._add_next()

    def iterates(self, loop: int, *, is_last: bool) -> None:
        """Note that an iteration of a loop begins. In the last one, the memory of its other steps is added."""
        self._is_last = is_last and self._is_next(loop)
        self._waits |= self._is_last

    def goes_on(self, loop: int) -> bool:
        """Return whether a loop that would end has another iteration, with the memory of its other steps."""
        if loop == self._open:
            self._open = None
            return True
        if self._is_last:
            return True
        if self._waits or not self._is_next(loop):
            return False
        self._waits = True
        return True

    def step_ended(self) -> None:
        """Add the memory of a loop's other steps, unless its iteration has dropped what was kept."""
        if self._waits:
            self._waits = False
            if self._is_kept():
                self._add_next()

    def _is_next(self, loop: int) -> bool:
        """Return whether the steps of a loop are the next to be added, and it still keeps what they would keep."""
        return bool(self._loops) and loop == self._loops[0].loop and self._is_kept()

    def _may_grow_on(self, growth: SteadyGrowth) -> bool:
        """Return whether the container that keeps memory has no limit, as far as the program's source says."""
        is_own = not growth.kept_by or growth.kept_by in self.classes
        return is_own and not self.limited.intersection(growth.kept_in)

    def _is_kept(self) -> bool:
        return self._device.holds_more(self._blocks[0][0])

    def _add_next(self) -> None:
        left = self._loops.pop(0) if self._loops else None
        if left is None or left.steps_left is None:
            self._is_unknown, self._loops = True, []
            return

        self._open = self._innermost if left.steps_left else None
        simulated = max(self._count() - self._begun_at - 1, 0)  # in the loops that follow the innermost one
        most = left.steps_left - simulated
        if self._most_steps is not None:
            most = min(most, self._most_steps - simulated - self.steps)
        steps = max(most - 1, 0)  # the last one is simulated
        self.steps += steps
        sizes = [size for _, size in self._blocks]
        larger = -(-steps // max(_MOST_BLOCKS // len(sizes), 1)) or 1
        wanted = [size * larger for size in sizes] * (steps // larger)
        wanted += [size * (steps % larger) for size in sizes if steps % larger]
        self._device.hold_with(self._blocks[0][0], wanted, STEPS_LEFT)
