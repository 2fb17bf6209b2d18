"""bench/house/mutants.py: which defects it plants, and that the lines it names are there."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

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


def test_large_numbers_change_by_more_than_one(mutants: ModuleType) -> None:
    """One more of a billion changes nothing that a test can see."""
    found = {(one.old, one.new) for one in mutants.find_mutants("module.py", "a = 3 + 0.5 + 1e9 + 1_000_000\n")}
    assert {("3", "4"), ("0.5", "1.5"), ("1e9", "2000000000.0"), ("1_000_000", "2000000")} <= found


def test_a_sample_is_the_same_for_a_seed_and_has_all_subjects(mutants: ModuleType) -> None:
    drawn = mutants.draw(26, seed=7)
    assert drawn == mutants.draw(26, seed=7) != mutants.draw(26, seed=8)
    assert len({mutants.subject_of(one) for one in drawn}) == len(mutants.SUBJECTS) == 13


def test_a_change_to_one_line_draws_its_defects_anew_and_no_others(mutants: ModuleType) -> None:
    def of_other_lines(source: str) -> set[tuple[str, str, str]]:
        lines = source.splitlines()
        ranked = [
            (rank, one) for rank, one in mutants.ranked("module.py", source, 7) if "found = " not in lines[one.line - 1]
        ]
        return {(rank, one.old, one.new) for rank, one in ranked}

    changed = SOURCE.replace("def chosen", "\n\ndef chosen").replace("value < limit", "value + 1 < limit")
    assert of_other_lines(changed) == of_other_lines(SOURCE) != set()
    ranks = [rank for rank, _ in mutants.ranked("module.py", SOURCE + SOURCE, 7)]
    assert len(set(ranks)) == len(ranks)


def test_a_line_has_its_own_tests_the_fastest_first_while_its_module_is_the_same(mutants: ModuleType) -> None:
    line_tests = sys.modules["line_tests"]
    one, other, *_ = sorted(line_tests.lines_of_functions(mutants.source_of("config.py")))
    seconds = {"tests/a.py::slow": 0.2, "tests/b.py::fast": 0.1, "tests/a.py::other": 1.0}
    reached = {"config.py": {str(one): ["tests/a.py::slow", "tests/b.py::fast"], str(other): ["tests/a.py::other"]}}
    made = mutants.LineTests(reached, seconds, {"config.py": line_tests.digest("config.py")})
    assert made.of("config.py", one) == ["tests/b.py::fast", "tests/a.py::slow"]
    assert made.of("config.py", other) == ["tests/a.py::other"]
    # A line that runs at import, whichever test that was: the fastest tests that run all lines go before the others.
    reached["config.py"]["3"] = ["tests/a.py::other"]
    assert made.of("config.py", 3) == ["tests/b.py::fast", "tests/a.py::other", "tests/a.py::slow"]
    stale = mutants.LineTests(reached, seconds, {"config.py": "another"})
    assert stale.of("config.py", other) == made.of("config.py", 3)
    left = made.without(["tests/a.py"])
    assert (left.of("config.py", one), left.of("config.py", other)) == (["tests/b.py::fast"], ["tests/b.py::fast"])
    assert list(left.seconds) == ["tests/b.py::fast"]


def test_tests_that_fail_without_a_defect_are_named_and_skipped_ones_are_not(mutants: ModuleType) -> None:
    follower = sys.modules["line_tests"]._Follower(SimpleNamespace())
    for name, how in (("a", "failed"), ("a", "passed"), ("b", "skipped"), ("c", "passed")):
        told = {one: one == how for one in ("passed", "failed", "skipped")}
        follower.pytest_runtest_logreport(SimpleNamespace(nodeid=f"tests/t.py::{name}", duration=0.5, **told))
    assert (follower.failed, follower.skipped) == ({"tests/t.py::a"}, {"tests/t.py::b"})
    made = mutants.LineTests(failed=["tests/t.py::a"])
    made.add(mutants.LineTests(failed=["tests/t.py::d", "tests/u.py::a"]))
    assert mutants.left_out(made.failed) == {"tests": 3, "files": {"tests/t.py": 2, "tests/u.py": 1}}
    assert made.without(["tests/t.py"]).failed == ["tests/u.py::a"]


def test_results_name_the_tests_left_out_and_are_written_though_the_copies_cannot_be_removed(
    mutants: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoTrials:
        """Finds that a test fails without a defect."""

        def __init__(self, *_: Any) -> None:
            self.unsound = {"tests/b.py::alone"}

        def run(self, mutants: list[Any]) -> list[Any]:
            return mutants

    def is_not_empty(place: str, **_: Any) -> None:
        raise OSError(39, "Directory not empty", place)

    monkeypatch.setattr(mutants, "read_map", lambda jobs: mutants.LineTests(failed=["tests/a.py::one"]))
    monkeypatch.setattr(mutants, "warm_up", lambda: None)
    monkeypatch.setattr(mutants, "BUILD", tmp_path)
    monkeypatch.setattr(mutants, "Trials", NoTrials)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--count", "0", "--sample", "--out", str(tmp_path / "out.json")])
    with monkeypatch.context() as during:
        during.setattr(os, "rmdir", is_not_empty)
        assert mutants.main() == 0
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert written["left_out"] == {"tests": 2, "files": {"tests/a.py": 1, "tests/b.py": 1}}


def test_tests_of_the_modules_folder_go_first_and_among_them_those_about_the_line(mutants: ModuleType) -> None:
    near, broad, far = (f"tests/unit/{place}" for place in ("ops/test_a.py::near", "ops/test_b.py::broad", "x.py::far"))
    made = mutants.LineTests({"ops/one.py": {"1": [near, broad, far], "2": [broad], "3": [broad]}})
    assert mutants.nearest([far, broad, near], "ops/one.py", made) == [near, broad]


def test_the_named_lines_and_survivors_are_there(mutants: ModuleType) -> None:
    named = mutants.named()
    assert len({(one.module, one.line) for one in named}) == 27
    for known in tomllib.loads(mutants.NAMED.read_text(encoding="utf-8"))["survivor"]:
        there = [
            mutants.describe(one) for one in mutants.find_mutants(known["module"], mutants.source_of(known["module"]))
        ]
        keys = ("module", "text", "old", "new")
        assert {key: known[key] for key in keys} in [{key: one[key] for key in keys} for one in there], known
