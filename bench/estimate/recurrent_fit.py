"""Writes the workspaces of recurrent layers that estimates use, and measures the error of layers that are left out.

Needs no GPU. The reserve, which has a formula, is compared with every measured layer. Packed sequences are not in the
table: their rows differ in length. Each file after the first is compared with the table of the files before it, which
has none of its layers.

Usage: python bench/estimate/recurrent_fit.py --measured bench/estimate/results/h200/recurrent_buffers.json
           bench/estimate/results/h200/recurrent_buffers_2.json --out bench/estimate/results/h200/recurrent_fit.json
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


def read_layers(path: Path) -> tuple[dict[str, Any], list[MeasuredLayer], list[MeasuredLayer]]:
    """Return where a file was measured, its layers, and its layers with packed sequences."""
    measured = json.loads(path.read_text(encoding="utf-8"))
    layers: list[MeasuredLayer] = []
    packed: list[MeasuredLayer] = []
    for case in measured["cases"]:
        if "error" in case:
            continue
        taken = [size for size in case["forward"] if size > 0]
        sizes = (taken[-2], taken[-1]) if case["training"] else (taken[-1], 0)
        (packed if case["packed"] else layers).append(MeasuredLayer(shape_of(case), *sizes))
    return measured["environment"], layers, packed


def equal_reserves(layers: list[MeasuredLayer]) -> dict[str, int]:
    """Return how many layers trained, and how many of their reserves are equal to the byte."""
    trained = [one for one in layers if one.reserve_bytes]
    return {"layers": len(trained), "equal": sum(one.shape.reserve_bytes == one.reserve_bytes for one in trained)}


def workspace_errors(layers: list[MeasuredLayer], table: list[MeasuredLayer]) -> dict[str, float]:
    """Return the relative errors of workspaces, each from the most similar other layers of ``table``."""
    errors = []
    for layer in layers:
        others = [one for one in table if one is not layer]
        errors.append(abs(layer.shape.workspace_from(others) / layer.workspace_bytes - 1))
    return {
        "layers": len(errors),
        "median_error": statistics.median(errors),
        "error_90th": statistics.quantiles(errors, n=10)[-1],
        "worst_error": max(errors),
    }


def main() -> None:
    """Write the table and the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    table: list[MeasuredLayer] = []
    packed: list[MeasuredLayer] = []
    files = []
    for path in arguments.measured:
        environment, layers, packed_layers = read_layers(path)
        unseen = {
            "reserves": equal_reserves(layers),
            "reserves_of_packed_sequences": equal_reserves(packed_layers),
            "workspaces": workspace_errors(layers, table) if table else {},
        }
        files.append({"file": path.name, "measured_on": environment, **({"unseen": unseen} if table else {})})
        table += layers
        packed += packed_layers
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(field.name for field in fields(RecurrentShape)), "workspace_bytes", "reserve_bytes"])
        writer.writerows([*map(int, astuple(one.shape)), one.workspace_bytes, one.reserve_bytes] for one in table)
    write_results(
        arguments.out,
        {
            "environment": describe_environment("cpu"),
            "files": files,
            "reserves": equal_reserves(table),
            "reserves_of_packed_sequences": equal_reserves(packed),
            "workspaces_left_out": workspace_errors(table, table),
        },
    )
    print(arguments.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
