"""Plants single-line defects in the core of gpuledger, one after the other, and counts those that the tests find.

A seeded random sample, equally many from each subject below, and every defect of the lines that `named_mutants.toml`
names. For each, tests that run its line are run in a fork until one fails: those of the module's folder first, then the
fastest. A change to the code draws the defects of the changed lines anew and no others.

`build/mutants` keeps which tests run which line, and which defects were found while their module was as it is. The next
run tries the other defects only; `--again` tries all. `named_mutants.toml` may say why a survivor changes nothing.
Results go to bench/house/results/cpu/mutants.json. Tests that fail without any defect are left out. Their number and
files are in the results, as a machine on which many fail finds fewer defects.

mutmut and cosmic-ray do not fit: neither draws a seeded sample, and each of their defects costs the import of torch.

Usage: python bench/house/mutants.py [--count 300] [--seed 1] [--named | --sample] [--minutes M] [--again]
           [--jobs N] [--out FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "lib"))

from environment import describe_environment, write_results
from line_tests import LineTests, file_of, first_lines
from mutation import Mutant, find_mutants
from warm_tests import UNKNOWN, Copy, Outcome, run_tests, warm_up

PACKAGE = ROOT / "src" / "gpuledger"
BUILD = ROOT / "build" / "mutants"
NAMED = Path(__file__).with_name("named_mutants.toml")
RESULTS = Path(__file__).with_name("results") / "cpu" / "mutants.json"
TESTS = (
    *(f"tests/unit/{name}" for name in ("analyze", "cards", "collect", "formats", "model", "ops", "simulate")),
    "tests/property",
)
"""The tests that mirror the packages of the subjects, and the properties."""
SUBJECTS = {
    "replay": ("analyze/posting/replay.py", "analyze/posting/checks.py"),
    "owners": ("analyze/posting/owners.py",),
    "rules": ("analyze/posting/rules.py", "model/accounts.py"),
    "activities": ("analyze/posting/activities.py", "analyze/posting/lane_scopes.py"),
    "balance": ("analyze/overview/balance.py",),
    "energy": (
        "analyze/step/energy.py",
        "analyze/posting/pass_energy.py",
        "model/energy_window.py",
        "collect/sampling/energy_meter.py",
    ),
    "tick phase": ("cards/tick_phase.py",),
    "allocator": ("analyze/allocator/*.py",),
    "choices": ("simulate/gpu/choices.py",),
    "fit": ("simulate/estimate/fit.py",),
    "sum": ("ops/totals/sum.py", "ops/totals/cost.py"),
    "predict": ("ops/predict/predict.py",),
    "formats": ("formats/*.py", "formats/*/*.py"),
}
MOST_TEST_S = 6.0
"""Tests of one defect are run until they took about this long where nothing is broken."""
LIMIT_S, LIMIT_FACTOR = 20.0, 5.0
FOUND = ("failed", "time limit")
MOST_NEAR, MOST_NEAR_FILES = 25, 3
"""Tests of the module's own folder that are run before all others, and the files that they are from."""


def modules_of(patterns: Iterable[str]) -> list[str]:
    """Return the modules of a subject, as paths below the package."""
    return [str(place.relative_to(PACKAGE)) for pattern in patterns for place in sorted(PACKAGE.glob(pattern))]


def source_of(module: str) -> str:
    """Return the source of a module."""
    return (PACKAGE / module).read_text(encoding="utf-8")


def draw(count: int, seed: int) -> list[Mutant]:
    """Return ``count`` defects, equally many from each subject as far as it has them, in an order made of the seed."""
    left = {
        name: sorted(
            (rank, mutant)
            for module in modules_of(patterns)
            for rank, mutant in ranked(module, source_of(module), seed)
        )
        for name, patterns in SUBJECTS.items()
    }
    chosen: list[Mutant] = []
    while len(chosen) < count and any(left.values()):
        chosen += [found.pop()[1] for found in left.values() if found][: count - len(chosen)]
    return chosen


def ranked(module: str, source: str, seed: int) -> Iterator[tuple[str, Mutant]]:
    """Yield the defects of a module, each with a random rank that its own line decides.

    A change to another line leaves the rank as it is, so that a sample stays the same while the code moves.
    """
    lines, seen = source.splitlines(), Counter[str]()
    for mutant in find_mutants(module, source):
        text = lines[mutant.line - 1]
        column = mutant.begin - source.rfind("\n", 0, mutant.begin) - 1 - (len(text) - len(text.lstrip()))
        told = repr((seed, module, text.strip(), column, mutant.old, mutant.new))
        seen[told] += 1
        yield hashlib.sha256(f"{told} {seen[told]}".encode()).hexdigest(), mutant


def named() -> list[Mutant]:
    """Return every defect of the lines that are named, each of which has to be found."""
    lines = tomllib.loads(NAMED.read_text(encoding="utf-8"))["line"]
    return [mutant for line in lines for mutant in on_line(line["module"], line["text"])]


def on_line(module: str, text: str) -> list[Mutant]:
    """Return the defects of the only line that reads like this."""
    source = source_of(module)
    numbers = [number for number, line in enumerate(source.splitlines(), 1) if line.strip() == text]
    if len(numbers) != 1:
        raise SystemExit(f"{NAMED.name}: {module} has {len(numbers)} lines that read: {text}")
    return [mutant for mutant in find_mutants(module, source) if mutant.line == numbers[0]]


def subject_of(mutant: Mutant) -> str:
    """Return the subject that a defect is of."""
    return next(name for name, patterns in SUBJECTS.items() if mutant.module in modules_of(patterns))


def read_map(jobs: int) -> LineTests:
    """Return which tests run which line, up to date."""
    place = BUILD / "map.json"
    modules = [module for patterns in SUBJECTS.values() for module in modules_of(patterns)]
    script = ROOT / "bench" / "lib" / "line_tests.py"
    # Forks write no bytecode, as theirs would be of a defect; without any, each would compile all that it imports.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, str(script), "--jobs", str(jobs), str(place), *modules, "--", *TESTS]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    return LineTests.read(place)


def nearest(tests: list[str], module: str, lines: LineTests) -> list[str]:
    """Return some tests of the folder that is a module's, those first that run little else, from few files."""
    near = [test for test in tests if Path(file_of(test)).parent == Path("tests/unit", module).parent]
    near.sort(key=lambda test: lines.lines_run[test])
    files = list(dict.fromkeys(map(file_of, near)))[:MOST_NEAR_FILES]
    return [test for test in near if file_of(test) in files][:MOST_NEAR]


class Found:
    """The defects that tests found in earlier runs, as long as their modules are the same."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._keys: dict[str, str] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}

    def __getitem__(self, mutant: Mutant) -> Outcome | None:
        how = self._keys.get(self._key(mutant))
        return Outcome(how) if how else None

    def add(self, mutant: Mutant, outcome: Outcome) -> None:
        """Keep an outcome on disk."""
        self._keys[self._key(mutant)] = outcome.how
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._place.write_text(json.dumps(self._keys), encoding="utf-8")

    @staticmethod
    def _key(mutant: Mutant) -> str:
        changed = mutant.apply(source_of(mutant.module))
        return f"{mutant.module}:{mutant.line} {hashlib.sha256(changed.encode()).hexdigest()[:16]}"


class Trial:
    """Tries defects in a copy of the package."""

    def __init__(self, lines: LineTests, directory: Path) -> None:
        self._lines = lines
        self._copy = Copy(directory)
        self._log = directory / "log"
        self._sound: dict[str, bool] = {}

    def run(self, mutant: Mutant) -> Outcome:
        """Return how the tests of its line end with a defect in place."""
        source = source_of(mutant.module)
        line = first_lines(source).get(mutant.line, mutant.line)
        found = self._lines.of(mutant.module, line) or self._lines.of_modules(modules_of(SUBJECTS[subject_of(mutant)]))
        tests = [test for test in found if self._sound.get(test, True)]
        near = nearest(tests, mutant.module, self._lines)
        outcome = Outcome("no test")
        for some in (near, [test for test in tests if test not in near]):
            if some and outcome.how in ("no test", "passed"):
                outcome = self._with_sound(mutant, source, some)
        return outcome

    def _with_sound(self, mutant: Mutant, source: str, tests: list[str]) -> Outcome:
        while tests:
            outcome = self._with(mutant, source, tests)
            guilty = outcome.test if outcome.test in tests else tests[0]
            if outcome.how != "failed" or self._is_sound(guilty):
                return outcome
            tests.remove(guilty)
        return Outcome("no test")

    def _with(self, mutant: Mutant, source: str, tests: list[str]) -> Outcome:
        self._copy.change(mutant.module, mutant.apply(source))
        try:
            return self._run(tests)
        finally:
            self._copy.restore(mutant.module)

    def _run(self, tests: list[str]) -> Outcome:
        chosen, total_s = [], 0.0
        for test in tests:
            total_s += self._lines.seconds[test]
            if chosen and total_s > MOST_TEST_S:
                break
            chosen.append(test)
        limit_s = LIMIT_S + LIMIT_FACTOR * min(total_s, MOST_TEST_S)
        outcome = run_tests(self._copy.source, chosen, limit_s, self._log)
        if outcome.how == UNKNOWN:
            files = list(dict.fromkeys(map(file_of, chosen)))
            outcome = run_tests(self._copy.source, files, 4 * limit_s, self._log)
        return outcome

    @property
    def unsound(self) -> list[str]:
        """The tests that failed alone so far."""
        return [test for test, is_sound in self._sound.items() if not is_sound]

    def _is_sound(self, test: str) -> bool:
        """Return whether a test passes alone where nothing is broken."""
        if test not in self._sound:
            self._sound[test] = self._run([test]).how == "passed"
        return self._sound[test]


def describe(mutant: Mutant) -> dict[str, Any]:
    """Return a defect as results name it: by the text of its line, which outlives its number."""
    return {
        "module": mutant.module,
        "line": mutant.line,
        "text": source_of(mutant.module).splitlines()[mutant.line - 1].strip(),
        "operator": mutant.operator,
        "old": mutant.old,
        "new": mutant.new,
    }


def reason_of(told: dict[str, Any]) -> str | None:
    """Return why a defect changes nothing that matters, where that was written down."""
    keys = ("module", "text", "old", "new")
    for known in tomllib.loads(NAMED.read_text(encoding="utf-8")).get("survivor", []):
        if all(known[key] == told[key] for key in keys):
            return str(known["reason"])
    return None


class Trials:
    """Tries defects in several processes at a time, each with a copy of the package of its own."""

    def __init__(self, lines: LineTests, directory: Path, jobs: int, end_s: float) -> None:
        self.unsound: set[str] = set()
        """The tests that failed without a defect while defects were tried."""
        self._lines, self._directory, self._end_s = lines, directory, end_s
        context = multiprocessing.get_context("fork")
        self._pool = context.Pool(jobs, self._begin)

    def _begin(self) -> None:
        global _trial
        _trial = Trial(self._lines, self._directory / str(os.getpid()))

    def run(self, mutants: list[Mutant]) -> Iterator[tuple[Outcome | None, float]]:
        """Yield how the tests of each defect end, and the seconds that took; None where the time was over before."""
        for outcome, took_s, unsound in self._pool.imap(_try_one, [(mutant, self._end_s) for mutant in mutants]):
            self.unsound.update(unsound)
            yield outcome, took_s
        self._pool.close()
        self._pool.join()


_trial: Trial
"""That of this process."""


def _try_one(given: tuple[Mutant, float]) -> tuple[Outcome | None, float, list[str]]:
    mutant, end_s = given
    begun_s = time.monotonic()
    if begun_s > end_s:
        return None, 0.0, []
    return _trial.run(mutant), time.monotonic() - begun_s, _trial.unsound


def left_out(tests: Iterable[str]) -> dict[str, Any]:
    """Return how many tests were left out, as they fail without a defect, and of which files."""
    files = Counter(map(file_of, tests))
    return {"tests": files.total(), "files": dict(sorted(files.items()))}


def try_all(mutants: list[Mutant], trials: Trials, known: Found) -> dict[str, Any]:
    """Return what became of the defects that were tried in time: counts, by subject, and the survivors."""
    ends: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    survivors = []
    news = trials.run([mutant for mutant in mutants if known[mutant] is None])
    for number, mutant in enumerate(mutants, 1):
        before = known[mutant]
        outcome, took_s = (before, 0.0) if before else next(news)
        if outcome is None:
            continue
        told, subject = describe(mutant), subject_of(mutant)
        ends[outcome.how] += 1
        tried[subject] += 1
        if outcome.how in FOUND:
            killed[subject] += 1
            known.add(mutant, outcome)
        else:
            survivors.append({**told, "tests": outcome.how, "reason": reason_of(told)})
        change = f"{told['old']} -> {told['new']}".replace("\n", " ")
        print(f"{number:4} {outcome.how:10} {took_s:5.1f} s {mutant.module}:{mutant.line} {change[:70]}", flush=True)
    return {
        "drawn": len(mutants),
        "tried": tried.total(),
        "found": killed.total(),
        "found_frac": killed.total() / max(tried.total(), 1),
        "ends": dict(ends),
        "subjects": {name: {"tried": tried[name], "found": killed[name]} for name in SUBJECTS if tried[name]},
        "survivors": survivors,
    }


def main() -> int:
    """Try the sample and the named lines, and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--named", action="store_true", help="only the named lines")
    parser.add_argument("--sample", action="store_true", help="only the sample")
    parser.add_argument("--again", action="store_true", help="forget what earlier runs found")
    parser.add_argument("--minutes", type=float, default=120.0, help="try no more defects after this time")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run tests at a time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.again:
        shutil.rmtree(BUILD, ignore_errors=True)
    lines, known = read_map(options.jobs), Found(BUILD / "found.json")
    sets = {
        "sample": [] if options.named else draw(options.count, options.seed),
        "named_lines": [] if options.sample else named(),
    }
    warm_up()
    end_s = time.monotonic() + 60 * options.minutes
    found: dict[str, Any] = {"seed": options.seed, "tests": list(TESTS)}
    failing = set(lines.failed)
    # What a test started may still write there when all defects were tried.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        for name, mutants in sets.items():
            trials = Trials(lines, Path(directory), options.jobs, end_s)
            found[name] = try_all(mutants, trials, known)
            failing |= trials.unsound
        found["left_out"] = left_out(failing)
        write_results(options.out, {"environment": describe_environment("cpu"), **found})
    print({name: f"{found[name]['found']} of {found[name]['tried']} found" for name in sets})
    if failing:
        files = ", ".join(found["left_out"]["files"])
        print(f"{len(failing)} tests fail here without a defect and were left out: {files}")
    unexplained = [one for name in sets for one in found[name]["survivors"] if not one["reason"]]
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())
