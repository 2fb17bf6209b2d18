"""Whether the answers of all tools are graded by one rule, and whether gpuledger's are read from its own output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from folders import ROOT

sys.path.insert(0, str(ROOT / "bench" / "lib"))

from peer_answers import ANSWERS, OTHER_PROGRAMS, QUESTIONS, Asked, answer, order_of
from peer_grades import Rule, Value, grade

TRUTH = {"bytes": 100.0, "state": 200.0, "least": 1.0, "most": 2.0}
NEAR = Rule(("bytes",), 0.01)


@pytest.mark.parametrize(
    ("value", "rule", "found"),
    [
        (101.0, NEAR, "right"),
        (99.0, NEAR, "right"),
        (102.0, NEAR, "wrong"),
        (None, NEAR, "missing"),
        ((100.0, 201.0), Rule(("bytes", "state"), 0.01), "right"),
        ((100.0, 203.0), Rule(("bytes", "state"), 0.01), "wrong"),
        (2.0, Rule(("counter",), 0.01, bounds=("least", "most")), "right"),
        (2.1, Rule(("counter",), 0.01, bounds=("least", "most")), "wrong"),
        (5.0, Rule(("counter",), 0.01), "told, unverified"),
        (5.0, Rule(), "told, unverified"),
        ("wide", Rule(label=lambda text: text == "wide"), "right"),
        ("first", Rule(label=lambda text: text == "wide"), "wrong"),
        ("", Rule(label=lambda text: text == "wide"), "missing"),
    ],
)
def test_a_value_is_right_within_the_rule_and_told_without_a_truth(value: Value, rule: Rule, found: str) -> None:
    assert grade(value, rule, TRUTH).grade == found


def test_there_are_twenty_questions_and_every_reader_belongs_to_one() -> None:
    assert len(QUESTIONS) == 20
    assert {question for readers in ANSWERS.values() for question in readers} <= set(QUESTIONS)
    assert set(OTHER_PROGRAMS) <= set(QUESTIONS)
    nobody = set(QUESTIONS) - {question for readers in ANSWERS.values() for question in readers}
    assert not nobody


def test_a_tool_without_a_reader_is_missing_and_one_that_could_not_run_is_not_asked() -> None:
    asked = Asked(Path("nowhere"), "cpu", {}, {})
    assert answer("zeus", "peak", asked, "cpu").grade == "missing"
    assert answer("zeus", "step_energy", None, "cuda").grade == "not asked"


def test_operators_are_ordered_by_their_first_run() -> None:
    assert order_of(["aten::linear", "aten::gelu", "aten::mean", "aten::square", "aten::mean"]) == "gelu mean square"
