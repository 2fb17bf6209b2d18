"""Whether the answers of all tools are graded by one rule, and whether gpuledger's are read from its own output."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

sys.path.insert(0, str(ROOT / "bench" / "lib"))

from peer_answers import (
    ANSWERS,
    NOT_ASKED,
    NOT_GRADED,
    OTHER_PROGRAMS,
    PLANTED_LINES,
    QUESTIONS,
    Asked,
    answer,
    grade_again,
    order_of,
)
from peer_grades import Rule, Value, grade

FILE = ROOT / "bench" / "peers" / "results" / "h200" / "side_by_side.json"
TRUTH = {"bytes": 100.0, "state": 200.0, "least": 1.0, "most": 2.0}
NEAR = Rule(("bytes",), 0.01)
LESS = Rule(("bytes",), 0.01, left_out="least")
CLOSE = Rule(label=lambda text: text == "a.py:5", nearly=lambda text: text == "a.py:3")


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
        (99.0, LESS, "right"),
        (98.5, LESS, "partly right"),
        (97.0, LESS, "wrong"),
        ("a.py:5", CLOSE, "right"),
        ("a.py:3", CLOSE, "partly right"),
        ("a.py:4", CLOSE, "wrong"),
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


def test_a_question_that_does_not_treat_tools_alike_is_graded_for_none() -> None:
    asked = Asked(Path("nowhere"), "cpu", {}, {})
    for question in NOT_GRADED:
        assert {answer(tool, question, asked, "cpu").grade for tool in ANSWERS if question not in ANSWERS[tool]} == {
            "not graded"
        }


def test_what_the_script_does_not_read_is_not_asked() -> None:
    for key in NOT_ASKED:
        tool, question = key.split(", ")
        assert question not in ANSWERS[tool]
        assert answer(tool, question, Asked(Path("nowhere"), "cuda", {}, {}), "cuda").grade == "not asked"


@pytest.fixture
def results() -> dict[str, Any]:
    """Return what an H200 measured."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def test_the_committed_grades_are_those_of_the_rules(results: dict[str, Any]) -> None:
    again = copy.deepcopy(results)
    grade_again(again)
    assert again == results


def test_grading_again_compares_values_with_the_facts_of_the_file(results: dict[str, Any]) -> None:
    answers = results["answers"]
    answers["peak"]["gpuledger"]["value"] = "1,000"
    answers["leak"]["snapshot"]["value"] = PLANTED_LINES[2]
    answers["category"]["profiler"]["value"] = "4,737,024, 1"
    kept = copy.deepcopy(answers["in_use"])
    answers["step_energy"]["gpuledger"]["value"] = str(1.05 * results["facts"]["long"]["step_energy_j"])
    grade_again(results)
    assert answers["peak"]["gpuledger"]["grade"] == "wrong"
    assert answers["leak"]["snapshot"]["grade"] == "partly right"
    assert answers["category"]["profiler"]["grade"] == "wrong"
    assert answers["step_energy"]["gpuledger"]["grade"] == "right"
    assert answers["in_use"] == kept


def test_lines_that_have_moved_cannot_be_graded_again(results: dict[str, Any]) -> None:
    results["planted_lines"][0] = "peer_programs.py:1"
    with pytest.raises(SystemExit, match="have moved"):
        grade_again(results)
