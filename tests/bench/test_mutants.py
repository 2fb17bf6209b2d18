"""bench/house/mutants.py: which defects it plants, and that the lines it names are there."""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from types import ModuleType

import pytest
from folders import BENCH

SOURCE = '''
"""Not text: 1 < 2."""
LIMIT: int = 3  # 4


def chosen(values, limit=1):
    """Return some: 5."""
    found = [value for value in values if value < limit and not value == 2]
    if found:
        raise ValueError(f"{len(found) + 1} of 7")
    return min(found)
'''


@pytest.fixture(scope="module")
def mutants() -> ModuleType:
    sys.path.insert(0, str(BENCH / "house"))
    try:
        return importlib.import_module("mutants")
    finally:
        sys.path.pop(0)


def test_defects_are_planted_in_what_runs_and_not_in_text(mutants: ModuleType) -> None:
    found = {(one.line, one.old, one.new) for one in mutants.find_mutants("module.py", SOURCE)}
    assert {(3, "3", "4"), (6, "1", "2"), (8, "<", "<="), (8, "and", "or"), (8, "not", ""), (8, "==", "!=")} <= found
    assert {(9, "found", "not (found)"), (11, "min", "max"), (11, "min(found)", "None")} <= found
    assert not {line for line, *_ in found} & {2, 7, 10}


def test_each_defect_can_be_read_and_is_another_program(mutants: ModuleType) -> None:
    for mutant in mutants.find_mutants("module.py", SOURCE):
        changed = mutant.apply(SOURCE)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE)), mutant


def test_a_sample_is_the_same_for_a_seed_and_has_all_subjects(mutants: ModuleType) -> None:
    drawn = mutants.draw(26, seed=7)
    assert drawn == mutants.draw(26, seed=7) != mutants.draw(26, seed=8)
    assert len({mutants.subject_of(one) for one in drawn}) == len(mutants.SUBJECTS) == 13


def test_the_named_lines_and_survivors_are_there(mutants: ModuleType) -> None:
    named = mutants.named()
    assert len({(one.module, one.line) for one in named}) == 27
    for known in tomllib.loads(mutants.NAMED.read_text(encoding="utf-8"))["survivor"]:
        there = [
            mutants.describe(one) for one in mutants.find_mutants(known["module"], mutants.source_of(known["module"]))
        ]
        keys = ("module", "text", "old", "new")
        assert {key: known[key] for key in keys} in [{key: one[key] for key in keys} for one in there], known
