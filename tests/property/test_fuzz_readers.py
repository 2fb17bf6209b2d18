"""A few damaged inputs for every reader of files; ``bench/fuzz/readers.py`` gives them as many as there is time for."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
from folders import BENCH

FUZZ = BENCH / "fuzz"
INPUTS = {"torch-snapshot": 30, "pyproject": 60, "campaign": 40, "calibration": 60, "keywords-setme": 20}
"""Inputs of targets that are quick; others get :data:`FEW`."""
FEW = 8
SEED = 20
HEAVY = ("printed-rows", "book-sqlite", "workload")
"""Targets that load torch, SQLAlchemy or scikit-learn, which takes longer than all of the rest."""


@pytest.fixture(scope="module")
def readers() -> ModuleType:
    sys.path.insert(0, str(FUZZ))
    try:
        return importlib.import_module("readers")
    finally:
        sys.path.remove(str(FUZZ))


def target_names() -> list[str]:
    sys.path.insert(0, str(FUZZ))
    try:
        return list(importlib.import_module("readers").TARGETS)
    finally:
        sys.path.remove(str(FUZZ))


@pytest.mark.parametrize("name", [name for name in target_names() if name not in HEAVY])
def test_damaged_inputs_are_read_or_refused(name: str, readers: ModuleType) -> None:
    outcome = readers.fuzz(readers.TARGETS[name], SEED, count=INPUTS.get(name, FEW))
    assert [one["said"] for one in outcome.failures] == []
    assert outcome.inputs == INPUTS.get(name, FEW)


def test_good_inputs_are_read(readers: ModuleType) -> None:
    for name in ("run-tables", "torch-snapshot", "pyproject", "keywords", "campaign", "operator-list"):
        target = readers.TARGETS[name]
        outcome = readers.fuzz(target, SEED, count=len(target.seeds()))
        assert outcome.outcomes.total() == len(target.seeds())
        assert set(outcome.outcomes) <= {"read", "empty", "exit 2"}, name  # a view can lack what it shows
