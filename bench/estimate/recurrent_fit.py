"""Compares the computed sizes of recurrent layers with those that were measured on a GPU.

Needs no GPU, and writes the measured sizes for the tests. Reserves and workspaces are computed from the layers' sizes.
The rules were made with the first two files in sight. The third refuted a rule that had been made from one recording,
of a wide LSTM in bfloat16; without that rule its layers are as right as the others.

Usage: python bench/estimate/recurrent_fit.py --out bench/estimate/results/h200/recurrent_fit.json
           --measured bench/estimate/results/h200/recurrent_buffers{,_2,_3}.json
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

from gpuledger.simulate.temporaries.recurrent_sizes import GRU, LSTM, RELU, TANH, RecurrentShape

KINDS = {"relu": RELU, "tanh": TANH, "lstm": LSTM, "gru": GRU}
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
TABLE = ROOT / "tests" / "data" / "h200" / "recurrent_layers.csv"
SMALL_ERROR = 0.003
LARGE_BYTES = 4 << 20
"""Smaller than any workspace, and larger than other temporary memory of backward."""


@dataclass(frozen=True)
class MeasuredLayer:
    """What a layer allocated on a GPU, in bytes."""

    shape: RecurrentShape
    forward_bytes: int
    reserve_bytes: int
    """0 for inference."""
    backward_bytes: int
    """Workspace of the weights' gradients; 0 for inference."""


def shape_of(case: dict[str, Any]) -> RecurrentShape:
    """Return the sizes of a measured case."""
    rows = sum(case["sizes"]) if case.get("sizes") else case["length"] * case["batch"]
    return RecurrentShape(
        KINDS[case["kind"]], ITEM_BYTES[case["dtype"]], 2 if case["bidirectional"] else 1, case["layers"], rows,
        case["batch"], case["inputs"], case["hidden"], case["projection"],
        drops=case["training"] and case["dropout"] > 0, has_biases=case["bias"],
        longest=len(case.get("sizes", ())), is_bfloat16=case["dtype"] == "bfloat16", trains=case["training"],
    )  # fmt: skip


def layer_of(case: dict[str, Any]) -> MeasuredLayer:
    """Return what a case allocated."""
    taken = [size for size in case["forward"] if size > 0]
    if not case["training"]:
        return MeasuredLayer(shape_of(case), taken[-1], 0, 0)
    return MeasuredLayer(shape_of(case), taken[-2], taken[-1], freed_at_once(case["backward"])[-1])


def freed_at_once(blocks: list[int]) -> list[int]:
    """Return the sizes of the large blocks that were given back before another one was taken."""
    made, taken = [], 0
    for block, after in zip(blocks, [*blocks[1:], 0], strict=True):
        taken += block > 0
        if block > LARGE_BYTES and after == -taken:
            made.append(block)
    return made


def read_layers(path: Path) -> tuple[dict[str, Any], list[MeasuredLayer]]:
    """Return where a file was measured, and its layers."""
    measured = json.loads(path.read_text(encoding="utf-8"))
    return measured["environment"], [layer_of(case) for case in measured["cases"] if "error" not in case]


def equal_reserves(layers: list[MeasuredLayer]) -> dict[str, int]:
    """Return how many layers trained, and how many of their reserves are equal to the byte."""
    trained = [one for one in layers if one.reserve_bytes]
    return {"layers": len(trained), "equal": sum(one.shape.reserve_bytes == one.reserve_bytes for one in trained)}


def describe_errors(errors: list[float]) -> dict[str, float]:
    """Return a summary of relative errors of workspaces."""
    return {
        "layers": len(errors),
        "within_0.3_percent": sum(error <= SMALL_ERROR for error in errors),
        "median_error": statistics.median(errors),
        "error_90th": statistics.quantiles(errors, n=10)[-1],
        "worst_error": max(errors),
    }


def forward_errors(layers: list[MeasuredLayer]) -> dict[str, float]:
    """Return the errors of workspaces of forward calls."""
    return describe_errors([abs(one.shape.workspace_bytes() / one.forward_bytes - 1) for one in layers])


def backward_errors(layers: list[MeasuredLayer]) -> dict[str, float]:
    """Return the errors of workspaces of backward calls."""
    trained = [one for one in layers if one.reserve_bytes]
    return describe_errors([abs(one.shape.workspace_bytes(backward=True) / one.backward_bytes - 1) for one in trained])


def write_table(layers: list[MeasuredLayer]) -> None:
    """Write the layers' sizes for the tests."""
    sizes = [field.name for field in fields(MeasuredLayer)][1:]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(field.name for field in fields(RecurrentShape)), *sizes])
        writer.writerows(
            [*map(int, astuple(one.shape)), one.forward_bytes, one.reserve_bytes, one.backward_bytes] for one in layers
        )


def main() -> None:
    """Write the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    layers: list[MeasuredLayer] = []
    files = []
    for path in arguments.measured:
        environment, found = read_layers(path)
        files.append({"file": path.name, "measured_on": environment})
        layers += found
    plain = [one for one in layers if not one.shape.longest]
    packed = [one for one in layers if one.shape.longest]
    write_table(layers)
    write_results(
        arguments.out,
        {
            "environment": describe_environment("cpu"),
            "files": files,
            "reserves": equal_reserves(plain),
            "reserves_of_packed_sequences": equal_reserves(packed),
            "forward_workspaces": forward_errors(plain),
            "forward_workspaces_of_packed_sequences": forward_errors(packed),
            "backward_workspaces": backward_errors(layers),
        },
    )
    print(arguments.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
