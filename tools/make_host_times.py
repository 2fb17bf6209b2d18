"""Writes the CPU time of each kind of call in an eager step: `python tools/make_host_times.py`.

Source: the CPU times of whole models in ``bench/operators/results/h200/operator_pairs_host.json`` and
``operator_pairs_unseen.json``. The interval is that of models with an architecture that the fit did not have.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "lib"))

from host_fit import (  # noqa: E402
    MEASURED,
    RESULTS,
    HostExample,
    fit_call_ns,
    predict_left_out,
    read_host_examples,
)

PLACE = ROOT / "src" / "gpuledger" / "ops" / "totals" / "host_times.json"
KINDS = ("operators", "others", "modules", "nodes")
LEVEL_FRAC = 0.9


def ends_of(examples: list[HostExample]) -> dict[str, float]:
    """Return the shares of a predicted time between which 90 % of the measured ones are."""
    shares = sorted(one.cpu_ns / time_ns for one, time_ns in zip(examples, predict_left_out(examples), strict=True))
    outside = (1 - LEVEL_FRAC) / 2 * (len(shares) + 1)
    low, high = max(math.floor(outside), 1), min(math.ceil(len(shares) + 1 - outside), len(shares))
    return {"low": round(shares[low - 1], 2), "high": round(shares[high - 1], 2)}


def host_times() -> str:
    """Return the content of the file."""
    used = [one for one in read_host_examples() if not one.waits_for_gpu]
    machine = json.loads((RESULTS / next(iter(MEASURED.values()))).read_text(encoding="utf-8"))["machine"]
    value = {
        "machine": f"{machine['processor']} with an {machine['card']}, Python {machine['python']}, "
        f"torch {machine['versions']['torch']}",
        "steps": len(used),
        "call_ns": dict(zip(KINDS, fit_call_ns(used), strict=True)),
        "interval_frac": ends_of(used),
    }
    return json.dumps(value, indent=1) + "\n"


def main() -> None:
    """Write the times."""
    PLACE.write_text(host_times(), encoding="utf-8")


if __name__ == "__main__":
    main()
