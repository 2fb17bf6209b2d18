"""Breaks gpuledger in known ways, one after the other, and says which of them its tests see.

Each mutant is a text of a module that is replaced in a copy of `src`, and the tests that have to fail then. They are of
tests that were merged, cut or freed of a clock: run this before and after such a change, the same mutants have to die.
Ends with 1 where one lives.

Usage: python tools/mutants.py [PART_OF_A_NAME …]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 900


@dataclass(frozen=True)
class Mutant:
    """One defect: in a module below `src/gpuledger`, `old` stands once and becomes `new`."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


BLOCKS = ("tests/unit/ops/measure/test_ops_blocks.py",)
READ_ONLY = ("tests/unit/cli/ops/test_ops_read_only.py",)
MUTANTS = (
    Mutant(
        "base power of another unit",
        "ops/measure/blocks.py",
        "window.energy_j / ((window.end_ns - window.start_ns) / 1e9)",
        "window.energy_j / ((window.end_ns - window.start_ns) / 1e8)",
        (*BLOCKS, "-k", "base_power"),
    ),
    Mutant(
        "base power without waiting",
        "ops/measure/blocks.py",
        "        time.sleep(method.base_window_s)\n        window = between_ticks(start, _tick(card, clock_ns))",
        "        window = between_ticks(start, start)",
        (*BLOCKS, "-k", "base_power"),
    ),
    Mutant(
        "windows from read to read and not from tick to tick",
        "ops/measure/blocks.py",
        "replace(start, at_ns=start.tick_ns)",
        "start",
        (*BLOCKS, "-k", "between_two_ticks"),
    ),
    Mutant(
        "every error of a database is tried again",
        "ops/database/operator_database.py",
        "if not _passes_by(error) or time.monotonic()",
        "if time.monotonic()",
        (*READ_ONLY, "-k", "broken_one"),
    ),
    Mutant(
        "a link as long as the whole chain",
        "ops/measure/chains.py",
        "/ (LONG - SHORT)",
        "* 0",
        ("tests/unit/ops/measure/test_ops_around.py", "-k", "longer_chain"),
    ),
    Mutant(
        "keys of any number of parts",
        "files/reading.py",
        "MAX_KEY_PARTS = 64",
        "MAX_KEY_PARTS = 64000",
        ("tests/unit/files/test_reading.py", "-k", "toml_is_refused"),
    ),
    Mutant(
        "frames of ours in the program's tracebacks",
        "collect/adapter/guard.py",
        "if not (ours or (after_ours and",
        "if not (after_ours and (ours or",
        ("tests/faults/test_program_unchanged.py", "-k", "forward and backward and every"),
    ),
    Mutant(
        "a time pass that does not wait for the program's profiler",
        "collect/passes/later_passes.py",
        "            self._user_profiler.install()",
        "            pass",
        ("tests/e2e/test_time_pass.py", "-k", "goes_first"),
    ),
    Mutant(
        "a recorder that draws the program's random numbers",
        "collect/steps/step_counter.py",
        "            self.seen += 1\n            self._ended(kind, started_ns, now_ns)",
        "            self.seen += int(torch.rand(1) < 2)\n            self._ended(kind, started_ns, now_ns)",
        ("tests/e2e/test_corpus.py", "-k", "random or accumulation"),
    ),
    Mutant(
        "an outer run that does not say that there are inner ones",
        "collect/session/outer_run.py",
        "        session.journal.note(NOTE)",
        "        pass",
        ("tests/faults/test_recorded_twice.py", "-k", "notes_it_once"),
    ),
    Mutant(
        "children whose end another thread hears",
        "collect/launch/launch.py",
        "        waker = _start_waker(child, lifetime)",
        "        waker = threading.Thread(target=os.getpid, daemon=True)\n        waker.start()",
        ("tests/unit/collect/launch/test_launch_child.py", "-k", "many or busy"),
    ),
    Mutant(
        "steps that end with a call though an optimizer is at work",
        "collect/steps/step_counter.py",
        "return not (self._marked or self.trained)",
        "return not self._marked",
        ("tests/e2e/test_run_trainings.py",),
    ),
    Mutant(
        "tokens that are not simulated add no memory",
        "simulate/rest/decoding.py",
        "each_bytes * left",
        "0 * left",
        ("tests/unit/simulate/rest/test_decoding.py",),
    ),
)


def lives(mutant: Mutant | None, source: Path, tests: tuple[str, ...]) -> bool:
    """Return whether the tests pass with a copy of the package, in which a mutant may be."""
    if mutant is not None:
        place = source / "gpuledger" / mutant.module
        text = place.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: its text stands {text.count(mutant.old)} times in {mutant.module}")
        place.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout.decode() + done.stderr.decode())
    return done.returncode == 0


def main() -> int:
    """Try each mutant and print a line for it."""
    chosen = [one for one in MUTANTS if all(part in one.name for part in sys.argv[1:])]
    alive = 0
    for mutant in chosen:
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory) / "src"
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            alive_here = lives(mutant, source, mutant.tests)
        print(f"{'LIVES' if alive_here else 'dies '}  {mutant.name}", flush=True)
        alive += alive_here
    print(f"{len(chosen) - alive} of {len(chosen)} mutants die")
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
