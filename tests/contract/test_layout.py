"""Tests lie where what they test lies, and read nothing that is not shipped with them."""

from __future__ import annotations

import re
import tomllib
from collections import Counter

import pytest
from folders import ROOT, TESTS

PACKAGE = ROOT / "src" / "gpuledger"
DATA_FOLDERS = {"programs", "cuda_programs", "data", "typing"}
"""Their programs are run or checked by a test; none of them is imported."""
MODULES = sorted(
    place
    for place in TESTS.rglob("*.py")
    if not DATA_FOLDERS & set(place.relative_to(TESTS).parts) and place.name != "conftest.py"
)


def test_folders_of_unit_tests_are_those_of_the_package() -> None:
    tested = {place.parent.relative_to(TESTS / "unit") for place in (TESTS / "unit").rglob("test_*.py")}
    assert len(tested) > 25
    assert [folder for folder in sorted(tested) if not (PACKAGE / folder / "__init__.py").exists()] == []


def test_names_of_test_modules_and_of_what_they_share_are_unique() -> None:
    assert [name for name, count in Counter(place.name for place in MODULES).items() if count > 1] == []


@pytest.mark.parametrize("words", ["bench/results", 'BENCH / "results"', "sys.path.insert(0, str(Path(__file__)"])
def test_tests_read_no_results_of_benchmarks_and_extend_no_path_by_hand(words: str) -> None:
    reading = {place.relative_to(TESTS).as_posix() for place in MODULES if words in place.read_text(encoding="utf-8")}
    assert reading - {"contract/test_layout.py"} == set()


def test_helpers_are_in_one_folder() -> None:
    elsewhere = [place for place in MODULES if not re.match(r"test_", place.name) and place.parent.name != "support"]
    assert {place.parent.name for place in elsewhere} == {"corpus"}


def test_mypy_checks_every_test() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert settings["strict"]
    assert settings["files"] == ["src", "tests"]
    assert not settings.get("ignore_errors")
    assert [one["module"] for one in settings["overrides"] if one.get("ignore_errors")] == []
    left_out = [place for place in MODULES if "# mypy: ignore-errors" in place.read_text(encoding="utf-8").splitlines()]
    assert left_out == []


def test_no_test_bounds_the_wall_clock() -> None:
    """A difference of two readings of a clock that also runs while others work is compared with nothing."""
    clock = r"time\.(?:perf_counter|monotonic|time)(?:_ns)?\(\) - \w+(?: / 1e9)? <"
    bounding = [place.name for place in MODULES if re.search(clock, place.read_text(encoding="utf-8"))]
    assert bounding == []


def test_every_file_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    there = [place.as_posix() for folder in ("src", "tests", "bench") for place in (ROOT / folder).rglob("*.py")]
    named = set(re.findall(r"`([a-z_/]+\.py)`", text))
    assert len(named) > 25
    assert [name for name in sorted(named) if not any(place.endswith(f"/{name}") for place in there)] == []
    assert len(text.splitlines()) <= 120
