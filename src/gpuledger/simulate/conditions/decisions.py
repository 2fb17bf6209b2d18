"""Decide conditions on values that an estimate does not compute.

A training's peak is the largest of all its steps, so the branch is taken that runs more of the program. A check that
would end a loop or function does not. Two branches are taken alternately. A loop without training steps is left when
its iterations need no more memory than those before. If they need more, a loop with no other end runs a fixed number
of times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from gpuledger.simulate.assumptions import EXPECTED, LARGEST, LEAST
from gpuledger.simulate.conditions.uses import ConditionUse, Role, use_of

REPEATS = {LEAST: 1, EXPECTED: 10, LARGEST: 100}
"""Assumption -> iterations of a loop that ends by values that are not computed."""
MOST_REPEATS = 1000
"""Iterations of a loop that should have another end."""
_QUIET = 2
"""Iterations in a row that need no more memory, after which a loop is left."""

_CHECKS = (Role.HOLDS, Role.FAILS)

_MORE = "the way that runs more of the program was taken"
_BOTH = "both branches were taken alternately"
_NUMBERS = "placeholder values decided how often the loop runs"
_LOOP = f"the loop was assumed to run {REPEATS[EXPECTED]} times"


@dataclass(frozen=True)
class ProgramProgress:
    """Training steps that ended, and bytes that are allocated."""

    steps: int
    allocated_bytes: int


@dataclass
class _Loop:
    """Evaluations of a loop's condition in one frame."""

    frame: int
    count: int = 0
    quiet: int = 0
    before: ProgramProgress = ProgramProgress(-1, 0)

    def goes_on(self, now: ProgramProgress) -> bool:
        """Count an evaluation. Return whether a step ended, or one of the last iterations needed more memory."""
        self.count += 1
        grew = now.steps != self.before.steps or now.allocated_bytes > self.before.allocated_bytes
        self.quiet = 0 if grew else self.quiet + 1
        self.before = now
        return self.quiet < _QUIET


class Decisions:
    """Decides conditions by what the program does with them.

    Args:
        assumption: One of :data:`gpuledger.simulate.assumptions.ASSUMPTIONS`.
        progress: Returns how far the program is.
        say: Gets what was decided, for a note.
        assumed: Called if the number of a loop's iterations was assumed.
    """

    def __init__(
        self,
        assumption: str,
        progress: Callable[[], ProgramProgress],
        say: Callable[[str], None],
        assumed: Callable[[], None],
    ) -> None:
        self.assumption = assumption
        self.has_extremes = False
        """Whether anything would be decided otherwise with the largest of assumed values than with the least."""
        self._progress = progress
        self._say = say
        self._assumed = assumed
        self._turns: dict[object, int] = {}
        self._loops: dict[object, _Loop] = {}

    def decide(self, frame: FrameType | None, by_numbers: bool | None = None) -> bool | None:
        """Return the truth of a condition; None if it is not known what it decides.

        Args:
            frame: Runs the instruction that needs the truth.
            by_numbers: The truth by placeholder values; None if there are none. They decide about a loop with another
                end in its condition, because that is often only a limit of a number that comes nearer to its end.
        """
        use = None if frame is None else use_of(frame)
        if frame is None or use is None:
            return None
        if use.role is Role.EITHER:
            turn = self._turns[use.key] = self._turns.get(use.key, 0) + 1
            self._say(_BOTH)
            return turn % 2 == 1
        if use.role in (Role.MORE, Role.LESS, *_CHECKS):
            self._say(_MORE)
            return use.role in (Role.MORE, Role.HOLDS)
        stays = use.role in (Role.STAY, Role.WITHIN, Role.REPEAT)
        if by_numbers is not None and use.role in (Role.WITHIN, Role.PAST):
            self._assumed()
            self.has_extremes = True
            if self.assumption != LARGEST:
                self._say(_NUMBERS)
                return by_numbers
        return self._goes_on(frame, use) == stays

    @staticmethod
    def is_check(frame: FrameType | None) -> bool:
        """Return whether a condition decides only if an exception is raised."""
        use = None if frame is None else use_of(frame)
        return use is not None and use.role in _CHECKS

    def _goes_on(self, frame: FrameType, use: ConditionUse) -> bool:
        """Return whether a loop has another iteration."""
        loop = self._loops.setdefault(use.key, _Loop(id(frame)))
        if loop.frame != id(frame):
            loop = self._loops[use.key] = _Loop(id(frame))
        ends_by_this = use.role in (Role.REPEAT, Role.END)
        self.has_extremes |= ends_by_this
        grows = loop.goes_on(self._progress())
        most = REPEATS[self.assumption] if ends_by_this else MOST_REPEATS
        if grows and ends_by_this and loop.count > _QUIET:
            self._assumed()
        self._say(_LOOP if ends_by_this and grows else _MORE)
        if not grows or loop.count > most - (use.role is Role.END):
            del self._loops[use.key]
            return False
        return True
