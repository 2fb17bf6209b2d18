"""The sdist: it holds all that its own tests read, and they run from it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from folders import ROOT

FOLDERS = ("src", "tests", "bench", "tools", "examples")
READING = (
    "tests/unit/test_units.py",
    "tests/unit/analyze/step/test_card_passes.py",
    "tests/unit/formats/test_formats_nvidia_smi.py",
    "tests/contract/test_measured_pages.py",
    "tests/contract/test_bench_index.py",
    "tests/contract/test_layout.py",
)
"""Tests that read the package, recordings, old files, results, pages and tools."""
ELSEWHERE = "test_any or test_they_are_shown or test_a_module_has_the_same or test_the_kind_of_a_blind_training"
"""Tests among them that read no other files than the rest: of texts that are made up, and other views of recordings.

And one that makes models: it takes as long as all others.
"""
OF_A_CHECKOUT = "tests/contract/test_measured_pages.py::test_results_name_commits_of_the_history"
"""A test among them that reads the history."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an unpacked sdist, built from the checkout."""
    place = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = place.glob("*.tar.gz")
    with tarfile.open(built) as packed:
        packed.extractall(place, filter="data")
    return place / built.name.removesuffix(".tar.gz")


def test_every_tracked_file_of_these_folders_is_in_the_sdist(unpacked: Path) -> None:
    asked = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", *FOLDERS], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip("not a checkout")
    tracked = {name for name in asked.stdout.split("\0") if name and (ROOT / name).exists()}
    assert len(tracked) > 1000
    assert sorted(name for name in tracked if not (unpacked / name).exists()) == []


def test_its_own_tests_run_from_it(unpacked: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--deselect",
        OF_A_CHECKOUT,
        "-k",
        f"not ({ELSEWHERE})",
    ]
    done = subprocess.run([*command, *READING], cwd=unpacked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
