"""Compares the predicted savings of findings with trainings that were changed accordingly.

Usage: python bench/memory/findings.py --out bench/memory/results/h200/findings.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from train_changed import SAMPLES

from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.services.runs import load

SCRIPT = str(LIB / "train_changed.py")
FIRST_WORDS = {"halve": "half", "checkpoint": "checkpoint", "use autocast": "autocast"}
"""How the action of a finding begins -> the change of the training."""


def train(name: str, before: tuple[str, ...], changes: list[str]) -> dict[str, Any]:
    """Train one model in a process of its own, once for each change; return what it printed."""
    asked = [word for change in changes for word in ("--change", change)]
    command = [sys.executable, *before, SCRIPT, name, *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def change_of(finding: Finding) -> str | None:
    """Return the change that a finding suggests, with the modules to checkpoint; None if it is not tried."""
    kind = next((change for words, change in FIRST_WORDS.items() if finding.action.startswith(words)), None)
    return f"{kind}={modules_of(finding)}" if kind == "checkpoint" else kind


def modules_of(finding: Finding) -> str:
    """Return the paths that a finding suggests to checkpoint, such as ``transformer.h.*``."""
    return finding.action.rpartition(" of ")[2].rpartition(" (")[0]


def judge(finding: Finding, printed: dict[str, int], peak_bytes: int) -> dict[str, Any]:
    """Return predicted and measured saving of one finding."""
    measured = peak_bytes - printed["peak_allocated_bytes"]
    return {
        "action": finding.action,
        "predicted_bytes": finding.saving_bytes,
        "measured_bytes": measured,
        "error_frac": (finding.saving_bytes - measured) / measured if measured else None,
        "checkpointed_modules": printed["checkpointed"],
    }


def measure(name: str, directory: Path) -> dict[str, Any]:
    """Record one model, then train it as it is and with each suggested change."""
    run = directory / f"{name}.ledger"
    train(name, ("-m", "gpuledger", "run", "-q", "--passes", "memory", "--out", str(run)), ["none"])
    findings = find_findings(load(run).rank(0))
    tried = {change: finding for finding in findings if (change := change_of(finding)) is not None}
    printed = train(name, (), ["none", *tried])
    peak_bytes = int(printed["none"]["peak_allocated_bytes"])
    return {
        "peak_allocated_bytes": peak_bytes,
        "changes": {
            change.partition("=")[0]: judge(finding, printed[change], peak_bytes) for change, finding in tried.items()
        },
        "actions": [finding.action for finding in findings],
    }


def main() -> None:
    """Measure every model; write the figures and print a line for each change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=tuple(SAMPLES))
    arguments = parser.parse_args()
    results: dict[str, Any] = {"environment": describe_environment("cuda"), "models": {}}
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.models:
            found = results["models"][name] = measure(name, Path(directory))
            write_results(arguments.out, results)
            for change, one in found["changes"].items():
                sizes = [one[key] / 2**20 for key in ("predicted_bytes", "measured_bytes")]
                error = one["error_frac"]
                shown = "–" if error is None else f"{error:+.1%}"
                print(
                    f"{name:10s} {change:10s} predicted {sizes[0]:8.1f} measured {sizes[1]:8.1f} MiB  {shown}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
