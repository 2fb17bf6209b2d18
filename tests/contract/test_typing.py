"""What a user's type checker says of the public names: right uses pass, each wrong one is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from folders import ROOT

pytest.importorskip("mypy", reason="the types are checked with mypy")
FOLDER = Path(__file__).parents[1] / "typing"
ERROR = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<code>[\w-]+)\]$", re.MULTILINE)


@pytest.fixture(scope="module")
def refused() -> Mapping[str, set[tuple[int, str]]]:
    """Return the lines that mypy refuses, with their codes, by file. What it knows of files that stay alike is kept."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(FOLDER / "mypy.ini"), "--no-error-summary"]
    cache = ROOT / ".mypy_cache" / "typing"
    names = ("right.py", "wrong.py")
    done = subprocess.run(
        [*command, "--cache-dir", str(cache), *names], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    found: dict[str, set[tuple[int, str]]] = {name: set() for name in names}
    for match in ERROR.finditer(done.stdout):
        found[match["file"]].add((int(match["line"]), match["code"]))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return found


def test_right_uses_are_accepted(refused: Mapping[str, set[tuple[int, str]]]) -> None:
    assert refused["right.py"] == set()


def test_each_wrong_use_is_refused(refused: Mapping[str, set[tuple[int, str]]]) -> None:
    lines = (FOLDER / "wrong.py").read_text(encoding="utf-8").splitlines()
    codes = [(number, line.rpartition("# E: ")[2]) for number, line in enumerate(lines, 1) if "# E: " in line]
    marked = [(number, code) for number, listed in codes for code in listed.split(", ")]
    assert len(marked) > 10
    assert refused["wrong.py"] == set(marked)
