"""Commands whose stdout, stderr or stdin is closed or full end well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from quick import quick_python
from synthetic import make_run

COMMANDS = {
    "show": "show a.ledger",
    "show json": "show a.ledger --json",
    "balance": "balance a.ledger",
    "sql": "sql a.ledger 'select 1'",
    "export": "export a.ledger --to json -o -",
    "report": "report a.ledger -o a.html --force",
    "diff": "diff a.ledger a.ledger",
    "help": "--help",
    "version": "--version",
    "cards": "cards",
    "doctor": "doctor",
    "no such run": "show none.ledger",
    "no such command": "shwo",
}
CLOSED = (">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("desk")
    make_run(directory / "a.ledger", blocks=20)
    return directory


def run(words: str, desk: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    line = f"'{python}' -m gpuledger {words}"
    return subprocess.run(["sh", "-c", line], cwd=desk, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_with_stdout_closed_ends_as_with_it_open(name: str, desk: Path) -> None:
    usual, closed = run(COMMANDS[name], desk, quick_python()), run(f"{COMMANDS[name]} >&-", desk)
    assert closed.returncode == usual.returncode
    assert "Traceback" not in closed.stderr
    assert "defect" not in closed.stderr
    assert "Error" not in closed.stderr


@pytest.mark.parametrize("closed", CLOSED)
def test_any_stream_may_be_closed(closed: str, desk: Path) -> None:
    done = run(f"show a.ledger {closed}", desk)
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
    done = run(f"show none.ledger {closed}", desk)
    assert done.returncode == 3


def test_a_file_does_not_become_stdout(desk: Path) -> None:
    assert run("report a.ledger -o b.html >&- 2>&-", desk).returncode == 0
    assert run("report a.ledger -o c.html", desk, quick_python()).returncode == 0
    assert (desk / "b.html").read_bytes() == (desk / "c.html").read_bytes()


def test_a_program_gets_the_streams_as_without_us(desk: Path) -> None:
    (desk / "says.py").write_text("import sys, os\nopen('said', 'w').write(repr((sys.stdout, sys.stdin is None)))\n")
    assert run("run says.py >&-", desk).returncode == 0
    assert (desk / "said").read_text() == "(None, False)"
