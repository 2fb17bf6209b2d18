"""A few damaged inputs for every reader of files; ``bench/fuzz/readers.py`` gives them as many as there is time for."""

from __future__ import annotations

import pytest
from fuzzing import SEED, readers, refuse_or_read

INPUTS = {"torch-snapshot": 20, "pyproject": 60, "calibration": 60, "keywords-setme": 8}
"""Damaged inputs of targets that are quick; others get :data:`FEW`."""
FEW = 3
HEAVY = ("printed-rows", "database-sqlite", "workload", "campaign")
"""Targets that load torch, SQLAlchemy or scikit-learn, which takes longer than all of the rest.

Campaigns are in ``tests/unit/test_hostile_files.py``, which loads torch anyway.
"""


@pytest.mark.parametrize("name", [name for name in readers.TARGETS if name not in HEAVY])
def test_damaged_inputs_are_read_or_refused(name: str) -> None:
    refuse_or_read(name, INPUTS.get(name, FEW))


def test_good_inputs_are_read() -> None:
    for name in ("run-tables", "torch-snapshot", "pyproject", "keywords", "operator-list"):
        target = readers.TARGETS[name]
        outcome = readers.fuzz(target, SEED, count=len(target.seeds()))
        assert outcome.outcomes.total() == len(target.seeds())
        assert set(outcome.outcomes) <= {"read", "empty", "exit 2"}, name  # a view can lack what it shows
