"""Writes the workspaces of recurrent layers that estimates use, and measures the error of layers that are left out.

Needs no GPU. The reserve, which has a formula, is compared with every measured layer. Packed sequences are not in the
table: their rows differ in length.

Usage: python bench/estimate/recurrent_fit.py --measured bench/estimate/results/h200/recurrent_buffers.json
           --out bench/estimate/results/h200/recurrent_fit.json
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

from gpuledger.simulate.gpu.recurrent_sizes import GRU, LSTM, RELU, TANH, MeasuredLayer, RecurrentShape

TABLE = ROOT / "src" / "gpuledger" / "simulate" / "gpu" / "recurrent_workspaces.csv"
KINDS = {"relu": RELU, "tanh": TANH, "lstm": LSTM, "gru": GRU}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def shape_of(case: dict[str, Any]) -> RecurrentShape:
    """Return the sizes of a measured case."""
    rows = sum(case["sizes"]) if case.get("sizes") else case["length"] * case["batch"]
    return RecurrentShape(
        KINDS[case["kind"]], ITEM_BYTES[case["dtype"]], 2 if case["bidirectional"] else 1, case["layers"], rows,
        case["batch"], case["inputs"], case["hidden"], case["projection"],
        drops=case["training"] and case["dropout"] > 0, has_biases=case["bias"],
        longest=len(case.get("sizes", ())),
    )  # fmt: skip


def equal_reserves(layers: list[MeasuredLayer]) -> dict[str, int]:
    """Return how many layers trained, and how many of their reserves are equal to the byte."""
    trained = [one for one in layers if one.reserve_bytes]
    return {"layers": len(trained), "equal": sum(one.shape.reserve_bytes == one.reserve_bytes for one in trained)}


def main() -> None:
    """Write the table and the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    measured = json.loads(arguments.measured.read_text(encoding="utf-8"))
    cases = [case for case in measured["cases"] if "error" not in case]
    taken = [[size for size in case["forward"] if size > 0] for case in cases]
    measured_layers = [
        MeasuredLayer(shape_of(case), *((sizes[-2], sizes[-1]) if case["training"] else (sizes[-1], 0)))
        for case, sizes in zip(cases, taken, strict=True)
    ]
    layers, packed = (
        [one for one, case in zip(measured_layers, cases, strict=True) if case["packed"] == is_packed]
        for is_packed in (False, True)
    )
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(field.name for field in fields(RecurrentShape)), "workspace_bytes", "reserve_bytes"])
        writer.writerows([*map(int, astuple(one.shape)), one.workspace_bytes, one.reserve_bytes] for one in layers)
    errors = []
    for layer in layers:
        like = min((one for one in layers if one is not layer), key=lambda one: layer.shape.distance(one.shape))
        errors.append(abs(layer.shape.workspace_like(like) / layer.workspace_bytes - 1))
    write_results(
        arguments.out,
        {
            "environment": describe_environment("cpu"),
            "measured_on": measured["environment"],
            "reserves": equal_reserves(layers),
            "reserves_of_packed_sequences": equal_reserves(packed),
            "workspaces_left_out": {
                "layers": len(errors),
                "median_error": statistics.median(errors),
                "error_90th": statistics.quantiles(errors, n=10)[-1],
                "worst_error": max(errors),
            },
        },
    )
    print(arguments.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
