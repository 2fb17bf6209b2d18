"""Keeps the record of programs that were estimated before they ran on a GPU: estimates as they were, and the peaks.

``blind_programs_later.json`` has programs that ran first, and were then estimated by a commit from before they were
written.

With ``--runs``, the folder of the estimates' runs, each program has ``grown_bytes``: how much its reserved memory grew
after the third simulated step, if a note says that later steps can be larger. None if there is no such note.

The programs were written for this by people who do not know the rules of estimates. They are not kept. The estimates
are ``gpuledger estimate --gpu h200 --json`` of each program, the peaks those of ``torch.cuda.max_memory_allocated()``
and ``max_memory_reserved()`` of the bare program.

Usage: python bench/estimate/blind_programs.py --estimates estimates.json --truth truth.json --commit HASH \
           --measured DATE [--apart NAME …] [--runs FOLDER] --out bench/estimate/results/h200/blind_programs.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import write_results

from gpuledger import load
from gpuledger.simulate.estimate.steps.later_steps import grown_after

KEPT = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_process_bytes", "lower_bytes", "upper_bytes")


def grown_bytes(estimate: dict[str, Any], runs: Path) -> int | None:
    """Return the growth of an estimate's reserved memory; None if a note does not say that steps are missing."""
    if not any("Larger steps after these are not included." in note for note in estimate["notes"]):
        return None
    counters = load(runs / estimate["run"]).rank(0).table("counters")
    return grown_after(counters.column("step").to_pylist(), counters.column("peak_reserved_bytes").to_pylist())


def record(
    estimates: dict[str, Any],
    truth: dict[str, Any],
    commit: str,
    measured: str,
    apart: list[str],
    runs: Path | None = None,
) -> dict[str, Any]:
    """Return program -> its estimate and its peaks, of those that have both.

    Programs that are ``apart`` do not count for the interval of others: they use CUDA graphs, limit their memory, or
    have a note that a part was not simulated. Nor do those whose memory grew, and may grow in steps that are missing.
    """
    found: dict[str, Any] = {}
    for name, estimate in sorted(estimates.items()):
        stem = Path(name).stem
        if stem not in truth or "verdict" not in estimate:
            continue
        allocated_bytes, reserved_bytes = truth[stem]
        found[stem] = {
            "estimate": {key: estimate[key] for key in KEPT},
            "kind": estimate["interval_from"],
            "own_interval": bool(estimate["uncompiled"]) or stem in apart,
            "commit": commit,
            "truth": {"peak_allocated_bytes": allocated_bytes, "peak_reserved_bytes": reserved_bytes},
            "measured": measured,
        }
        if runs is not None:
            found[stem]["grown_bytes"] = grown = grown_bytes(estimate, runs)
            found[stem]["own_interval"] |= bool(grown)
    return found


def without(estimates: dict[str, Any], truth: dict[str, Any]) -> dict[str, list[str]]:
    """Return the programs that had no estimate, and those that did not end on the GPU."""
    stems = {Path(name).stem: "verdict" in estimate for name, estimate in estimates.items()}
    return {
        "no_estimate": [stem for stem, has_estimate in stems.items() if not has_estimate],
        "no_truth": [stem for stem in stems if stem not in truth],
    }


def main() -> None:
    """Add programs to the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--estimates", "--truth", "--out"):
        parser.add_argument(name, required=True, type=Path)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--measured", required=True)
    parser.add_argument("--apart", nargs="*", default=[])
    parser.add_argument("--runs", type=Path)
    given = parser.parse_args()
    results = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"programs": {}}
    both = (json.loads(path.read_text(encoding="utf-8")) for path in (given.estimates, given.truth))
    estimates, truth = both
    results["programs"] |= record(estimates, truth, given.commit, given.measured, given.apart, given.runs)
    for key, names in without(estimates, truth).items():
        results[key] = sorted({*results.get(key, ()), *names})
    write_results(given.out, results)


if __name__ == "__main__":
    main()
