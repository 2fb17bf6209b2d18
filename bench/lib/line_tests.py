"""Which tests run which lines of gpuledger, each test with its time: made by running them with coverage.

Only the tests of files that are new or changed are run again, and those that run a module that has changed.

With several jobs, each runs the tests of some of the files.

Usage: python bench/lib/line_tests.py [--jobs N] MAP.json MODULE… -- TEST_FOLDER_OR_FILE…
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "gpuledger"


@dataclass(frozen=True)
class LineTests:
    """What was found: ``reached[module][line]`` are the tests that run a line, ``seconds[test]`` its time.

    ``contents`` has a digest of each module and of each file of tests, as they were then. ``failed`` are the tests that
    failed, which run no line of ``reached``.
    """

    reached: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, place: Path) -> LineTests:
        """Return a map that was written before; an empty one if there is none."""
        return cls(**json.loads(place.read_text(encoding="utf-8"))) if place.exists() else cls()

    def is_current(self, name: str) -> bool:
        """Return whether a module or a file of tests is as it was when the map was made."""
        return self.contents.get(name) == digest(name)

    def without(self, files: Iterable[str]) -> LineTests:
        """Return the map without the tests of some files."""
        dropped = set(files)
        reached = {
            module: {
                line: kept
                for line, tests in lines.items()
                if (kept := [one for one in tests if file_of(one) not in dropped])
            }
            for module, lines in self.reached.items()
        }
        seconds = {test: seconds for test, seconds in self.seconds.items() if file_of(test) not in dropped}
        contents = {name: content for name, content in self.contents.items() if name not in dropped}
        return LineTests(reached, seconds, contents, [test for test in self.failed if file_of(test) not in dropped])

    def add(self, other: LineTests) -> None:
        """Add what another map found, for tests that this one does not have."""
        for module, lines in other.reached.items():
            reached = self.reached.setdefault(module, {})
            for line, tests in lines.items():
                reached[line] = sorted({*tests, *reached.get(line, [])})
        self.seconds.update(other.seconds)
        self.contents.update(other.contents)
        self.failed[:] = sorted({*self.failed, *other.failed})

    def of(self, module: str, line: int) -> list[str]:
        """Return the tests that run a line, the fastest first.

        Lines that run when the module is imported belong to no test: they are of all tests of the module, and so are
        the lines of a module that has changed since.
        """
        in_function = line in lines_of_functions((PACKAGE / module).read_text(encoding="utf-8"))
        tests = self.reached.get(module, {}).get(str(line)) if in_function and self.is_current(module) else None
        return self._by_time(tests) if tests else self.of_modules([module])

    @cached_property
    def lines_run(self) -> Counter[str]:
        """Return how many lines each test runs: few, if it is about one thing."""
        return Counter(test for lines in self.reached.values() for tests in lines.values() for test in tests)

    def of_modules(self, modules: Iterable[str]) -> list[str]:
        """Return the tests that run a line of some modules: first the fastest ones that run all of these lines."""
        lines_of: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for name in modules:
            for line, tests in self.reached.get(name, {}).items():
                for test in tests:
                    lines_of[test].add((name, line))
        first, seen = [], set[tuple[str, str]]()
        ordered = self._by_time(lines_of)
        for test in ordered:
            if not lines_of[test] <= seen:
                first.append(test)
                seen |= lines_of[test]
        return [*first, *(test for test in ordered if test not in set(first))]

    def _by_time(self, tests: Iterable[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds[test], test))


class _Follower:
    """Switches the context of coverage with each test, and keeps outcomes and times."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()
        self.skipped: set[str] = set()
        self._measured = measured

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._measured.switch_context(item.nodeid)
        yield
        self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped.add(report.nodeid)


def update_map(place: Path, modules: list[str], folders: list[str], jobs: int = 1) -> None:
    """Write which tests of ``folders`` run each line of ``modules``, or bring what is in ``place`` up to date.

    A folder may also be one file of tests.
    """
    files = sorted({str(file.relative_to(ROOT)) for name in folders for file in _files_of(ROOT / name)})
    known = LineTests.read(place)
    again = {name for name in files if not known.is_current(name)}
    again |= {file_of(test) for name in modules if not known.is_current(name) for test in known.of_modules([name])}
    known = known.without([*again, *(name for name in known.contents if name not in (*files, *modules))])
    again.intersection_update(files)
    if again:
        found = _run_side_by_side(modules, sorted(again), jobs) if jobs > 1 else [_run(modules, sorted(again))]
        for part in found:
            known.add(part)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(asdict(known)), encoding="utf-8")


def _files_of(place: Path) -> Iterable[Path]:
    return [place] if place.is_file() else place.rglob("test_*.py")


def _run_side_by_side(modules: list[str], files: list[str], jobs: int) -> list[LineTests]:
    """Run the tests of some files in several processes, and return what each found."""
    largest_first = sorted(files, key=lambda name: (-(ROOT / name).stat().st_size, name))
    shares = [share for share in (largest_first[first::jobs] for first in range(jobs)) if share]
    with tempfile.TemporaryDirectory() as directory:
        places = [Path(directory, f"{number}.json") for number, _ in enumerate(shares)]
        processes = [
            subprocess.Popen([sys.executable, __file__, str(place), *modules, "--", *share], cwd=ROOT)
            for place, share in zip(places, shares, strict=True)
        ]
        statuses = [process.wait() for process in processes]
        if any(statuses):
            raise SystemExit("the tests of some files could not be run")
        return [LineTests.read(place) for place in places]


def _run(modules: list[str], files: list[str]) -> LineTests:
    """Run the tests of some files and return what they run."""
    places = [str(PACKAGE / module) for module in modules]
    os.environ["COVERAGE_CORE"] = "ctrace"  # sys.monitoring tells only of the first test that runs a line
    measured = coverage.Coverage(data_file=None, include=places, config_file=False)
    follower = _Follower(measured)
    measured.start()
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files], plugins=[follower])
    measured.stop()
    data = measured.get_data()
    contents = {name: digest(name) for name in (*modules, *files)}
    found = LineTests(seconds=follower.seconds, contents=contents, failed=sorted(follower.failed))
    for module, place in zip(modules, places, strict=True):
        contexts = data.contexts_by_lineno(place).items()
        found.reached[module] = {
            str(line): sorted({test for test in tests if test} - follower.failed - follower.skipped)
            for line, tests in contexts
        }
    return found


def file_of(test: str) -> str:
    """Return the file that a test is in."""
    return test.split("::")[0]


def digest(name: str) -> str:
    """Return a digest of a module, a path below the package, or of a file of tests, a path below the repository."""
    place = ROOT / name if name.startswith("tests/") else PACKAGE / name
    return hashlib.sha256(place.read_bytes()).hexdigest()[:16]


@cache
def first_lines(source: str) -> dict[int, int]:
    """Return, for each line of a statement that has several, the line where the statement begins."""
    found: dict[int, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            found |= dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.lineno)
    return found


@cache
def lines_of_functions(source: str) -> frozenset[int]:
    """Return the lines that run when a function is called, not when the module is imported."""
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(
        line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
    )


def main() -> None:
    """Read the words of the command and make the map."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("map", type=Path)
    parser.add_argument("modules", nargs="*")
    separator = sys.argv.index("--")
    options = parser.parse_args(sys.argv[1:separator])
    update_map(options.map, options.modules, sys.argv[separator + 1 :], options.jobs)


if __name__ == "__main__":
    main()
