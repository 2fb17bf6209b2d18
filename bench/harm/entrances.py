"""Raises an error before each statement of gpuledger that runs in a recorded program, one after the other.

``python bench/harm/entrances.py`` writes ``bench/harm/results/cpu/entrances.json``. The programs are those of
``tests/support/planted_programs.py``; what is compared is in ``tests/support/planted_walk.py``, with the reasons for
the places where an error reaches the program (``unguarded`` in the file). ``unreached`` are places that run only if
something takes long, and did not run again. Takes about ten minutes on two cores.
With ``--module`` only the statements of these modules raise, and failures are printed; nothing is written without
``-o``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment

WALK = ROOT / "tests" / "support" / "planted_walk.py"


def main() -> int:
    """Walk in as many processes as there are cores, and write what came of it; return 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, help="bench/harm/results/cpu/entrances.json without --module")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--module", action="append", default=[], help="walk this module alone; may be given again")
    options = parser.parse_args()
    place = options.o or (None if options.module else ROOT / "bench" / "harm" / "results" / "cpu" / "entrances.json")
    started_s = time.monotonic()
    walks = [_start(number, options) for number in range(options.processes)]
    shares = [[json.loads(line) for line in walk.communicate()[0].splitlines()] for walk in walks]
    if any(walk.returncode for walk in walks):
        return 1
    programs = [_joined(results) for results in zip(*shares, strict=True)]
    failures = [_portable(failure) for program in programs for failure in program.pop("failures")]
    unguarded = Counter(
        f"{one['module']}: {one['function']}" for program in programs for one in program.pop("unguarded")
    )
    unreached = [one for program in programs for one in program.pop("unreached")]
    outcome = {
        "environment": describe_environment("cpu"),
        "seconds": round(time.monotonic() - started_s),
        "places": sum(program["walked"] for program in programs),
        "failed": len(failures),
        "unreached": unreached,
        "unguarded": dict(sorted(unguarded.items())),
        "programs": programs,
        "failures": failures,
    }
    if place is not None:
        place.write_text(json.dumps(outcome, indent=1) + "\n", encoding="utf-8")
    for failure in failures:
        print(json.dumps(failure))
    print(f"{outcome['places']} places, {len(failures)} failed" + (f"; {place.name}" if place else ""))
    return 1 if failures or any(program["without"] for program in programs) else 0


def _start(number: int, options: argparse.Namespace) -> subprocess.Popen[str]:
    orders = {
        "programs": [],
        "share": [number, options.processes],
        "every_statement": True,
        "modules": options.module,
    }
    return subprocess.Popen([sys.executable, str(WALK), json.dumps(orders)], stdout=subprocess.PIPE, text=True)


def _portable(failure: dict[str, Any]) -> dict[str, Any]:
    """Return a failure with the paths of this checkout relative to it, so that it reads the same everywhere."""
    told: dict[str, Any] = json.loads(json.dumps(failure).replace(f"{ROOT}/", ""))
    return told


def _joined(results: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """Return what the processes found of one program, each in its share of the places."""
    first = results[0]
    return {
        "program": first["program"],
        "reached": first["reached"],
        "walked": sum(one["walked"] for one in results),
        "without": {key: value for one in results for key, value in one["without"].items()},
        "failures": [failure for one in results for failure in one["failures"]],
        "unguarded": [failure for one in results for failure in one["unguarded"]],
        "unreached": [place for one in results for place in one["unreached"]],
    }


if __name__ == "__main__":
    sys.exit(main())
