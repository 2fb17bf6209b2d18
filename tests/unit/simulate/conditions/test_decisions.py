"""Conditions on values that are not computed: the program's source says which way needs more memory."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import pytest

from gpuledger.simulate.conditions.decisions import MOST_REPEATS, REPEATS, Decisions, ProgramProgress
from gpuledger.simulate.conditions.numbers import UnknownNumber


class Unknown:
    """A value of which only the truth is asked."""

    def __init__(self, decide: Callable[[FrameType], bool | None]) -> None:
        self.decide = decide

    def __bool__(self) -> bool:
        return bool(self.decide(sys._getframe(1)))

    def __gt__(self, other: object) -> Unknown:
        return self

    def item(self) -> bool:
        """Return the truth."""
        return bool(self.decide(sys._getframe(1)))


class Program:
    """How far a program is: by default, each question finds more memory."""

    def __init__(self, *, grows: bool = True) -> None:
        self.grows = grows
        self.steps = self.asked = 0
        self.said: list[str] = []
        self.assumed = 0

    def progress(self) -> ProgramProgress:
        self.asked += self.grows
        return ProgramProgress(self.steps, self.asked)

    def note_assumed(self) -> None:
        self.assumed += 1

    def decisions(self, assumption: str = "expected") -> Decisions:
        return Decisions(assumption, self.progress, self.said.append, self.note_assumed)

    def value(self, assumption: str = "expected") -> Any:
        return Unknown(self.decisions(assumption).decide)


@pytest.fixture
def program() -> Program:
    return Program()


def test_a_branch_without_an_opposite_is_taken(program: Program) -> None:
    value = program.value()
    taken: list[str | int] = []
    if value > 3:
        taken.append("comparison")
    if not value:
        taken.append("negated")
    if value and len(taken) > 1:
        taken.append("joined")
    assert value
    taken += [number for number in range(2) if value]
    assert taken == ["comparison", "negated", "joined", 0, 1]
    assert set(program.said) == {"the way that runs more of the program was taken"}


def test_two_branches_are_taken_in_turn(program: Program) -> None:
    value = program.value()
    assert ["if" if value else "else" for _ in range(4)] == ["if", "else", "if", "else"]


def test_a_check_that_skips_or_fails_does_not(program: Program) -> None:
    value, left = program.value(), []
    for number in range(3):
        if value > 1:
            continue
        left.append(number)
    if not value.item():
        raise AssertionError
    finite = value.item()
    if not finite:
        raise AssertionError
    assert left == [0, 1, 2]


def early(value: Any) -> Any:
    """Return early if there is nothing to do."""
    if value:
        return 0
    return sum([1, 2]) + sum([3])


def late(value: Any) -> Any:
    """Return early with the greater part of the work."""
    if value:
        return sum([1, 2]) + sum([3])
    return 0


def test_of_two_returns_the_one_with_more_calls_is_reached(program: Program) -> None:
    assert early(program.value()) == late(program.value()) == 6


def converged(value: Any) -> Any:
    """Return a condition on a value."""
    return value.item()


def test_a_loop_with_another_end_runs_to_it(program: Program) -> None:
    value = program.value()
    for number in range(30):  # noqa: B007
        if converged(value):
            break
    assert number == 29
    count = 0
    while not value and count < 30:
        count += 1
    assert count == 30
    assert not program.assumed


@pytest.mark.parametrize("assumption", list(REPEATS))
def test_a_loop_without_another_end_runs_a_number_of_times_that_is_assumed(program: Program, assumption: str) -> None:
    value, count, other = program.value(assumption), 0, 0
    while value > 1:
        count += 1
    while True:
        other += 1
        if value:
            break
    assert count == other == REPEATS[assumption]
    assert bool(program.assumed) is (assumption != "least")


@pytest.mark.parametrize("assumption", list(REPEATS))
def test_only_loops_depend_on_the_assumption(program: Program, assumption: str) -> None:
    decisions = program.decisions(assumption)
    value, number = Unknown(decisions.decide), UnknownNumber(0.5, decisions.decide)
    for _ in range(5):
        if value or number > 3:
            break
    assert not decisions.has_extremes
    while value:
        pass
    assert decisions.has_extremes
    limited, tries = program.decisions(assumption), 0
    number = UnknownNumber(0.5, limited.decide)
    while number > 0.1 and tries < 3:
        tries += 1
    assert limited.has_extremes


def test_a_loop_that_needs_no_more_memory_is_left() -> None:
    program = Program(grows=False)
    value, count = program.value(), 0
    for count in range(50):  # noqa: B007
        if value:
            break
    assert count < 5
    while value or count < 3:
        count += 1
    assert count < 10
    assert not program.assumed


def test_a_loop_with_training_steps_is_not_left() -> None:
    program = Program(grows=False)
    value = program.value()
    for _ in range(50):
        program.steps += 1
        if value:
            break
    assert program.steps == 50


def test_a_loop_over_an_endless_iterator_is_left(program: Program) -> None:
    value, count = program.value(), 0
    for count in iter(int, 1):  # noqa: B007
        program.asked += 1
        if value:
            break
    assert program.asked == pytest.approx(2 * MOST_REPEATS, abs=4)


def test_code_without_a_source_decides_nothing(program: Program) -> None:
    made: dict[str, Any] = {"value": program.value()}
    exec("taken = 1 if value else 2", made)
    assert made["taken"] == 2


def test_comparisons_of_unknown_numbers_are_decided_by_what_follows(program: Program) -> None:
    number = UnknownNumber(0.5, cast(Any, program.value()).decide)
    reached = []
    for _ in range(3):
        if abs(number - 0.5) < 1e-9:
            break
        reached.append(_)
    assert reached == [0, 1, 2]
    assert isinstance(2 * number / 3, UnknownNumber)
    assert (number * 2, max(number, 0.25), f"{number:.2f}") == (1.0, 0.5, "0.50")
    assert type(pickle.loads(pickle.dumps(number))) is float


def tries_of(program: Program, assumption: str) -> int:
    """Return the iterations of a solver with steps of unknown size and a limit of 60."""
    size = 0.1 * UnknownNumber(1.0, cast(Any, program.value(assumption)).decide) ** 2
    reached, tries = 0.0 * size, 0
    while reached < 1.0 and tries < 60:
        tries += 1
        reached = reached + min(size, 1.0 - reached)
    return tries


def test_numbers_decide_a_loop_that_has_a_limit_too_and_the_limit_is_the_largest(program: Program) -> None:
    assert tries_of(program, "expected") in (10, 11)
    assert program.assumed
    assert set(program.said) == {"placeholder values decided how often the loop runs"}
    assert tries_of(program, "largest") == 60
    assert tries_of(Program(grows=False), "largest") < 10
