"""Whether an answer is right: pure functions that compare what a tool's output says with the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

YES, PART, NO, ABSENT = "yes", "part", "no", "absent"


@dataclass(frozen=True)
class Answer:
    """What a tool's output says, and whether that is right: yes, part, no, or absent where it could not be asked."""

    grade: str
    value: str = ""


NOTHING = Answer(NO)


def near(value: float | None, truth: float, within_frac: float) -> Answer:
    """Return yes where a figure is within a share of the truth."""
    if value is None:
        return NOTHING
    return Answer(YES if abs(value - truth) <= within_frac * abs(truth) else NO, f"{value:,.0f}")


def between(value: float | None, least: float, most: float) -> Answer:
    """Return yes where a figure is within bounds."""
    if value is None:
        return NOTHING
    return Answer(YES if least <= value <= most else NO, f"{value:,.0f}")


def ranked(
    rows: Mapping[str, float], total: float | None, right: Callable[[str], bool], within_frac: float = 0.1
) -> Answer:
    """Return yes where the largest row is the right one and the rows sum to the total.

    It is part where the right one is of the first three, or where the rows do not sum.
    """
    ordered = sorted((label for label in rows if rows[label] > 0), key=lambda label: -rows[label])
    if not any(map(right, ordered[:3])):
        return Answer(NO, ", ".join(ordered[:3]))
    value = f"{ordered[0]}: {rows[ordered[0]]:,.0f}"
    whole = total is not None and abs(sum(rows.values()) - total) <= within_frac * total
    return Answer(YES if right(ordered[0]) and whole else PART, value)


def counted(hits: int, of: int, value: str = "") -> Answer:
    """Return yes where all facts were found, part where some were."""
    return Answer(YES if hits == of else PART if hits else NO, value or f"{hits} of {of}")


def least(answer: Answer, grade: str) -> Answer:
    """Return the answer with at most this grade."""
    order = (NO, PART, YES)
    return answer if order.index(answer.grade) <= order.index(grade) else Answer(grade, answer.value)
