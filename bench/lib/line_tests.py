"""Which tests run which lines of gpuledger, each test with its time: made once, by running them with coverage.

Usage: python bench/lib/line_tests.py MAP.json MODULE… -- TEST_FOLDER…
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "gpuledger"


@dataclass(frozen=True)
class LineTests:
    """What was found: ``reached[module][line]`` are the tests that run a line, ``seconds[test]`` its time."""

    reached: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, place: Path) -> LineTests:
        """Return a map that was written before."""
        return cls(**json.loads(place.read_text(encoding="utf-8")))

    def of(self, module: str, line: int) -> list[str]:
        """Return the tests that run a line, the fastest first.

        Lines that run when the module is imported belong to no test: they are of all tests of the module.
        """
        tests = self.reached.get(module, {}).get(str(line))
        return self._by_time(tests) if tests else self.of_modules([module])

    def of_modules(self, modules: Iterable[str]) -> list[str]:
        """Return the tests that run any line of some modules, the fastest first."""
        return self._by_time(
            {test for name in modules for some in self.reached.get(name, {}).values() for test in some}
        )

    def _by_time(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))


class _Follower:
    """Switches the context of coverage with each test, and keeps outcomes and times."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self._measured = measured

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(item.nodeid)
        yield
        self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if not report.passed:
            self.failed.add(report.nodeid)


def make_map(place: Path, modules: list[str], folders: list[str]) -> None:
    """Run the tests of ``folders`` and write which of them run each line of ``modules``."""
    files = [str(PACKAGE / module) for module in modules]
    measured = coverage.Coverage(data_file=None, include=files, config_file=False)
    follower = _Follower(measured)
    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *folders], plugins=[follower])
    measured.stop()
    data = measured.get_data()
    reached: dict[str, dict[str, list[str]]] = {}
    for module, file in zip(modules, files, strict=True):
        lines = data.contexts_by_lineno(file)
        reached[module] = {
            str(line): sorted(tests)
            for line, found in sorted(lines.items())
            if (tests := {test for test in found if test} - follower.failed)
        }
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps({"reached": reached, "seconds": follower.seconds}), encoding="utf-8")


@cache
def first_lines(source: str) -> dict[int, int]:
    """Return, for each line of a statement that has several, the line where the statement begins."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            found |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno)
    return found


if __name__ == "__main__":
    separator = sys.argv.index("--")
    make_map(Path(sys.argv[1]), sys.argv[2:separator], sys.argv[separator + 1 :])
