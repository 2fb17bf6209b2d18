"""Writes how far whole models are from the sums of their operators: `python tools/make_sum_errors.py`.

Source: the eager models and their sums in ``bench/operators/results/h200/operator_pairs*.json``.
"""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "operators" / "results" / "h200"
NAMES = ("operator_pairs.json", "operator_pairs_training.json")
PLACE = ROOT / "src" / "gpuledger" / "ops" / "totals" / "sum_errors.json"


def sum_errors() -> str:
    """Return the content of the file."""
    documents = [json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in NAMES]
    pairs = [pair for document in documents for pair in document["pairs"] if pair["host_ns"] is not None]
    rows = [
        [
            round(pair["host_ns"] / max(pair["busy_ns"], pair["queued_ns"] or 0.0), 4),
            round(pair["whole_ns"] / pair["sum_ns"], 4),
            round(pair["whole_j"] / pair["sum_j"], 4) if pair["whole_j"] and pair["sum_j"] else None,
        ]
        for pair in pairs
    ]
    source = f"whole models on an {documents[0]['environment']['card']}"
    lines = ",\n  ".join(map(json.dumps, rows))
    return f'{{\n "source": {json.dumps(source)},\n "pairs": [\n  {lines}\n ]\n}}\n'


def main() -> None:
    """Write the errors."""
    PLACE.write_text(sum_errors(), encoding="utf-8")


if __name__ == "__main__":
    main()
