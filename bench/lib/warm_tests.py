"""Runs tests against a changed copy of gpuledger, in forks of an interpreter that has loaded the libraries."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[2]
WALL_FACTOR = 4
"""Time on the clock for each second of processor time: machines are busy, and a defect may wait without end."""
MOST_BYTES = 16 * 2**30
"""Address space of a fork: a defect may allocate without end."""


UNKNOWN = "unknown test"


@dataclass(frozen=True)
class Outcome:
    """How tests ended: ``passed``, ``failed``, ``time limit``; ``test`` is the first test or file that failed.

    ``unknown test``: one of them is not there, as its name is made of values that the change has changed.
    """

    how: str
    test: str = ""


class Copy:
    """A copy of the package made of links, in which one module at a time can be another."""

    def __init__(self, directory: Path) -> None:
        self.source = directory / "src"
        for place in sorted((ROOT / "src").rglob("*")):
            there = self.source / place.relative_to(ROOT / "src")
            if (place.name == "__pycache__" or place.is_file()) and "__pycache__" not in place.parent.parts:
                there.parent.mkdir(parents=True, exist_ok=True)
                there.symlink_to(place)

    def change(self, module: str, source: str) -> None:
        """Have ``module`` be this source."""
        place = self.source / "gpuledger" / module
        place.unlink()
        place.write_text(source, encoding="utf-8")

    def restore(self, module: str) -> None:
        """Have ``module`` be the package's own again."""
        place = self.source / "gpuledger" / module
        place.unlink()
        place.symlink_to(ROOT / "src" / "gpuledger" / module)


def warm_up() -> None:
    """Load what tests need and is not gpuledger's."""
    for name in ("numpy", "pyarrow.parquet", "pyarrow.compute", "click", "rich", "torch", "duckdb", "psutil"):
        __import__(name)
    hypothesis.settings.register_profile(
        "mutants",
        deadline=None,
        database=None,
        derandomize=True,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )


def run_tests(source: Path, tests: Sequence[str], limit_s: float, log: Path) -> Outcome:
    """Run tests in the order given until one fails, with gpuledger from ``source``.

    ``limit_s`` is processor time.
    """
    assert "gpuledger" not in sys.modules
    begun, told = os.pipe()
    child = os.fork()
    if not child:
        os.close(begun)
        _run_in_fork(source, tests, limit_s, log, told)
    os.close(told)
    try:
        status = _wait(child, WALL_FACTOR * limit_s)
        with os.fdopen(begun, encoding="utf-8", errors="replace") as stream:
            os.set_blocking(stream.fileno(), False)
            first = (stream.read() or "").split("\n")[0]
    finally:
        _kill_group(child)
    if status is None:
        return Outcome("time limit")
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU:
        return Outcome("time limit")
    if code == pytest.ExitCode.USAGE_ERROR:
        return Outcome(UNKNOWN)
    if code > 0 and not first:
        raise SystemExit(log.read_text(encoding="utf-8", errors="replace"))
    return Outcome("failed", first) if code else Outcome("passed")


def _wait(child: int, limit_s: float) -> int | None:
    """Return a child's status; None, and no child, after the limit."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.02)
    _kill_group(child)
    os.waitpid(child, 0)
    return None


def _kill_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


class _FirstFailure:
    """Writes the name of each test that fails, and of each file that cannot be imported."""

    def __init__(self, told: int) -> None:
        self._told = told

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tell(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._tell(report)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            os.write(self._told, f"{report.nodeid}\n".encode())


def _run_in_fork(source: Path, tests: Sequence[str], limit_s: float, log: Path, told: int) -> None:
    """Run the tests and end this process with pytest's status."""
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (round(limit_s), round(limit_s) + 1))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(source))
        words = ["-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
        words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        status = int(pytest.main([*words, "--hypothesis-profile=mutants", *tests], plugins=[_FirstFailure(told)]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
