"""Runs the tests with another version of PyTorch or Python than that of ``make test``, and counts them.

CI has one version. This script runs in any environment with another one and the tools for tests, on the tests that
record, simulate or measure with PyTorch. It writes how many passed, and the names of those that failed. It ends with
pytest's exit status.

Usage: python bench/house/other_torch.py [--out bench/house/results/cpu/other_torch.json] [-- PYTEST_ARGUMENTS]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "lib"))

from environment import describe_environment

FOLDERS = ("unit/collect", "unit/simulate", "unit/integrations", "unit/services", "unit/ops", "e2e", "faults")
"""Folders of tests whose tests run programs with PyTorch."""


def main() -> int:
    """Return pytest's exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "bench/house/results/cpu/other_torch.json")
    parser.add_argument("arguments", nargs="*", help="for pytest; by default the folders that need PyTorch")
    given = parser.parse_args()
    arguments = given.arguments or [f"tests/{folder}" for folder in FOLDERS]
    with tempfile.TemporaryDirectory() as directory:
        outcomes = Path(directory, "outcomes.xml")
        words = [sys.executable, "-m", "pytest", "-q", "--show-capture=no", f"--junitxml={outcomes}"]
        status = subprocess.run([*words, *arguments], cwd=ROOT, check=False).returncode
        result = {"environment": describe_environment("cpu"), "arguments": arguments, **outcomes_of(outcomes)}
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return status


def outcomes_of(report: Path) -> dict[str, Any]:
    """Return the number of tests by outcome and the names of those that failed, from pytest's XML report."""
    counted = Counter[str]()
    failed = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        parts = {part.tag for part in case}
        outcome = "failed" if parts & {"failure", "error"} else "skipped" if "skipped" in parts else "passed"
        counted[outcome] += 1
        if outcome == "failed":
            failed.append(f"{case.get('classname')}.{case.get('name')}")
    return {"tests": dict(sorted(counted.items())), "failed_tests": sorted(failed)}


if __name__ == "__main__":
    raise SystemExit(main())
