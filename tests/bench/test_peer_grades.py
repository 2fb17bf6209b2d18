"""Whether the answers of other tools are graded by what they say."""

from __future__ import annotations

import sys

import pytest
from folders import ROOT

sys.path.insert(0, str(ROOT / "bench" / "lib"))

from peer_grades import Answer, between, counted, least, near, ranked


@pytest.mark.parametrize(
    ("rows", "total", "grade"),
    [
        ({"wide": 60.0, "first": 40.0}, 100.0, "yes"),
        ({"wide": 60.0, "first": 20.0}, 100.0, "part"),
        ({"wide": 60.0, "first": 40.0}, None, "part"),
        ({"wide": 30.0, "first": 70.0}, 100.0, "part"),
        ({"a": 40.0, "b": 30.0, "c": 20.0, "wide": 10.0}, 100.0, "no"),
        ({"wide": 0.0, "first": 100.0}, 100.0, "no"),
        ({}, 100.0, "no"),
    ],
)
def test_rows_are_graded_by_the_largest_and_by_their_sum(
    rows: dict[str, float], total: float | None, grade: str
) -> None:
    assert ranked(rows, total, lambda label: label == "wide").grade == grade


@pytest.mark.parametrize(("value", "grade"), [(101.0, "yes"), (99.0, "yes"), (102.0, "no"), (None, "no")])
def test_a_figure_has_to_be_near_the_truth(value: float | None, grade: str) -> None:
    assert near(value, 100.0, 0.01).grade == grade


@pytest.mark.parametrize(("value", "grade"), [(1.0, "yes"), (2.0, "yes"), (2.1, "no"), (0.9, "no"), (None, "no")])
def test_a_figure_has_to_be_within_bounds(value: float | None, grade: str) -> None:
    assert between(value, 1.0, 2.0).grade == grade


@pytest.mark.parametrize(("hits", "grade"), [(0, "no"), (1, "part"), (2, "yes")])
def test_facts_are_counted(hits: int, grade: str) -> None:
    assert counted(hits, 2) == Answer(grade, f"{hits} of 2")


@pytest.mark.parametrize(("grade", "found"), [("yes", "part"), ("part", "part"), ("no", "no")])
def test_a_grade_has_a_limit(grade: str, found: str) -> None:
    assert least(Answer(grade, "x"), "part") == Answer(found, "x")
