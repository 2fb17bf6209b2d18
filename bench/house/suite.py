"""Measures the processor time of the tests: the whole process tree, and of it each file of tests.

The wall clock says little on a machine that others use; processor time is nearly the same there. Every process that
the tests start is counted, also one that outlives its parent: this script adopts it and waits for it. What a file of
tests takes is what happens in its worker from the beginning of a test's setup to the end of its teardown, with the
processes that ended in that time, and what the server of quick interpreters (``tests/support/quick.py``) took
meanwhile; so a fixture of a module or a session belongs to the first test that asks for it. The rest is "outside of
tests": Python's start, imports and collection in each process of pytest, and what outlives a test.

Usage: python bench/house/suite.py [--label TEXT] [--out bench/house/results/cpu/suite.json] [-- PYTEST_ARGUMENTS]

Without arguments for pytest it runs all tests with one worker. With several, the quick server's time is counted by
each worker that has a test at work, and files are an upper bound; the total is right.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "bench" / "lib"
PR_SET_CHILD_SUBREAPER = 36


def measure(arguments: list[str]) -> dict[str, Any]:
    """Return processor seconds of pytest with these arguments: in total, outside of tests, per file and slowest tests.

    Source: the kernel's accounting of children that were waited for (getrusage), user and system time.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("suite.py: this kernel lets no process adopt orphans: Linux 3.4 or newer is needed")
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "SUITE_CPU_DIRECTORY": directory}
        given = environment.get("PYTHONPATH")  # an empty entry would be the working directory of each process
        environment["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), *([given] if given else [])])
        begin_s, begin = time.monotonic(), _children_s()
        words = [sys.executable, "-m", "pytest", "-p", "suite_plugin", *arguments]
        pytest = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert pytest.stdout is not None
        last = ""
        for line in pytest.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
        status = pytest.wait()
        with suppress(ChildProcessError):
            while os.wait():  # orphans that the tests left, the quick server last
                pass
        total_s = _children_s() - begin
        rows = [json.loads(line) for file in Path(directory).iterdir() for line in file.read_text().splitlines()]
    by_file: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        by_file[row["test"].partition("::")[0]].append(row["processor_s"])
    in_tests_s = sum(row["processor_s"] for row in rows)
    return {
        "arguments": arguments,
        "status": status,
        "outcome": re.sub(r"=+|\(.*\)| in .*", "", last).strip(),
        "tests": len(rows),
        "wall_s": round(time.monotonic() - begin_s, 1),
        "processor_s": round(total_s, 1),
        "outside_of_tests_s": round(total_s - in_tests_s, 1),
        "files": {
            name: {"tests": len(times), "processor_s": round(sum(times), 2)}
            for name, times in sorted(by_file.items(), key=lambda item: -sum(item[1]))
        },
        "slowest_tests": {
            row["test"]: round(row["processor_s"], 2) for row in sorted(rows, key=lambda row: -row["processor_s"])[:100]
        },
    }


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Measure, print the largest and write the results."""
    sys.path.insert(0, str(LIBRARY))
    from environment import describe_environment  # loads torch, which the measurement needs not

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--label", default="all tests", help="the name of these figures in the file of results")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "house" / "results" / "cpu" / "suite.json")
    parser.add_argument("arguments", nargs="*", help="for pytest, after --")
    asked = parser.parse_args()
    figures = measure(asked.arguments or ["-q", "-n", "1"])
    for name, figure in list(figures["files"].items())[:40]:
        print(f"{figure['processor_s']:9.2f} s {figure['tests']:5} tests  {name}")
    print(f"{figures['processor_s']:9.1f} s in all, {figures['outside_of_tests_s']} s of it outside of tests")
    kept = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
    kept[asked.label] = {"environment": describe_environment("cpu"), **figures}
    asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(figures["status"])


if __name__ == "__main__":
    sys.exit(main())
