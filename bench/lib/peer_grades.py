"""Whether an answer is right: one rule for each question, the same for every tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

RIGHT, PARTLY, WRONG = "right", "partly right", "wrong"
TOLD, MISSING, UNASKED, UNGRADED = "told, unverified", "missing", "not asked", "not graded"

Value = float | str | tuple[float, ...] | None
Facts = Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """What a tool's output says, and whether that is right."""

    grade: str
    value: str = ""


@dataclass(frozen=True)
class Rule:
    """The truth of a question: figures within a share of it, a label, or bounds; without any of them it is unknown.

    A value is partly right if it is the truth without the fact ``left_out``, or a label that is ``nearly`` the truth.
    """

    facts: tuple[str, ...] = ()
    within_frac: float = 0.0
    label: Callable[[str], bool] | None = None
    bounds: tuple[str, str] | None = None
    nearly: Callable[[str], bool] | None = None
    left_out: str = ""

    @property
    def truth(self) -> str:
        """Say what the rule compares with."""
        if self.label:
            return "planted label"
        if self.facts:
            return f"{', '.join(self.facts)} ± {self.within_frac:.0%}"
        return "none"


def grade(value: Value, rule: Rule, facts: Facts) -> Answer:
    """Return the grade of one value: missing without one, told where the truth is not known."""
    if value is None or value in ("", ()):
        return Answer(MISSING)
    if rule.label is not None:
        text = str(value)
        nearly = rule.nearly is not None and rule.nearly(text)
        return Answer(RIGHT if rule.label(text) else PARTLY if nearly else WRONG, text[:160])
    values = value if isinstance(value, tuple) else (value,)
    shown = ", ".join(
        f"{one:,.4g}" if isinstance(one, float) and one < 1e4 else f"{one:,.0f}" for one in map(float, values)
    )
    if rule.facts and all(facts.get(name) for name in rule.facts):
        near = [
            abs(float(one) - facts[name]) <= rule.within_frac * facts[name]
            for one, name in zip(values, rule.facts, strict=True)
        ]
        part_bytes = facts.get(rule.left_out)
        first, slack = facts[rule.facts[0]], rule.within_frac * facts[rule.facts[0]]
        partly = part_bytes is not None and abs(float(values[0]) + part_bytes - first) <= slack
        return Answer(RIGHT if all(near) else PARTLY if partly else WRONG, shown)
    if rule.bounds and all(facts.get(name) for name in rule.bounds):
        least, most = (facts[name] for name in rule.bounds)
        return Answer(RIGHT if least <= float(values[0]) <= most else WRONG, shown)
    return Answer(TOLD, shown)
