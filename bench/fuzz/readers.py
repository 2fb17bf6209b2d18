"""Gives damaged inputs to every reader of files, and counts which are read, refused, or show a defect of gpuledger.

Each target runs in a process of its own, with a time limit and a memory limit for each input. Inputs are made from the
seed alone, so that a failure can be made again: ``readers.py --one "SEED"``. Those that failed are kept in ``--keep``.

Usage: python bench/fuzz/readers.py [TARGET…] [--seconds 60] [--seed 0] [--json FILE] [--keep DIR]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from file_targets import TARGETS as FILE_TARGETS
from harness import LEAST_MEMORY_BYTES, Outcome, Target, inputs, try_one
from run_targets import ROOT
from run_targets import TARGETS as RUN_TARGETS

TARGETS: dict[str, Target] = {target.name: target for target in (*RUN_TARGETS, *FILE_TARGETS)}
WARM_ROUNDS = 8
LATE_S = 300
"""A child that is so late hangs in a library that no signal reaches."""
ROOM_BYTES = 3 * LEAST_MEMORY_BYTES
"""Address space an input may take beside what the process has; what it holds of it is measured."""


def fuzz(
    target: Target,
    seed: int,
    *,
    seconds: float = 1e9,
    count: int = 1 << 60,
    keep: Path | None = None,
    good: bool = True,
) -> Outcome:
    """Return what inputs of one target came to, in this process: the good ones first unless ``good`` is False."""
    outcome = Outcome(target.name)
    ends_s = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="gpuledger-fuzz-") as directory:
        for own_seed, tree in inputs(target, seed, 0 if good else len(target.seeds())):
            if outcome.inputs >= count or time.monotonic() > ends_s:
                return outcome
            if keep is not None:
                (keep / f"{target.name}.last").write_text(own_seed)
            try_one(target, tree, own_seed, Path(directory) / "input", outcome, keep)
    raise AssertionError("inputs have no end")


def _in_child(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Return what a target came to in a child of its own; a child that hangs or dies is a failure with its input."""
    command = [sys.executable, __file__, name, "--child", "--seconds", str(asked.seconds), "--seed", str(asked.seed)]
    try:
        done = subprocess.run(
            [*command, "--keep", str(asked.keep)], capture_output=True, text=True, timeout=asked.seconds + LATE_S
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        last = (asked.keep / f"{name}.last").read_text()
        said = done.stderr[-1_500:] if not isinstance(error, subprocess.TimeoutExpired) else str(error)
        failure = {"seed": last, "outcome": "died or hung", "said": said}
        return {"target": name, "inputs": 0, "outcomes": {"died or hung": 1}, "failures": [failure]}


def _limit_memory() -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    size_bytes = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmSize:"))
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + ROOM_BYTES, resource.RLIM_INFINITY))


def _child(target: Target, asked: argparse.Namespace) -> int:
    for seed in range(WARM_ROUNDS):  # libraries are loaded before time and memory are measured
        fuzz(target, seed, count=len(target.seeds()))
    _limit_memory()
    outcome = fuzz(target, asked.seed, seconds=asked.seconds, keep=asked.keep)
    print(json.dumps(outcome.to_json()))
    return 0


def _one(seed: str) -> int:
    """Make one input again and let its error through."""
    name, number, place = seed.split()
    target = TARGETS[name]
    _, tree = next(inputs(target, int(number), int(place)))
    outcome = Outcome(name)
    with tempfile.TemporaryDirectory(prefix="gpuledger-fuzz-") as directory:
        try_one(target, tree, seed, Path(directory) / "input", outcome, Path("fuzz-failures"))
    print(json.dumps(outcome.to_json(), indent=1))
    for failure in outcome.failures:
        print(failure["said"])
    return 0


def _about() -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    libraries = ("numpy", "pyarrow", "duckdb", "torch", "sqlalchemy", "pyyaml")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in libraries},
    }


def _kept(found: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome as it is written: of a failure the seed, which makes it again, and what it was."""
    return {**found, "failures": [{name: one[name] for name in ("seed", "outcome")} for one in found["failures"]]}


def main() -> int:
    """Fuzz the targets asked for; end with 1 where anything was a defect or beyond a limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="all without any")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the outcome here")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="directory of inputs that failed")
    parser.add_argument("--one", metavar="SEED", help="make one input again, such as 'run-journal 0 17'")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        return _one(asked.one)
    asked.keep = asked.keep.resolve()
    asked.keep.mkdir(parents=True, exist_ok=True)
    if asked.child:
        return _child(TARGETS[asked.targets[0]], asked)
    found = []
    for name in asked.targets or TARGETS:
        found.append(_in_child(name, asked))
        print({key: value for key, value in found[-1].items() if key != "failures"}, flush=True)
        for said, count in Counter(one["said"].splitlines()[-1] for one in found[-1]["failures"]).most_common(8):
            print(f"   {count} × {said[:160]}", flush=True)
    if asked.json:
        document = {**_about(), "seconds_each": asked.seconds, "seed": asked.seed, "targets": list(map(_kept, found))}
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(one["failures"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
