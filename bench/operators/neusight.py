"""Compares predictions with layer times that others measured on other GPUs (NeuSight, ASPLOS '25), by kind and model.

Usage: python bench/operators/neusight.py --data FOLDER --out bench/operators/results/cpu/neusight.json

FOLDER has ``ops.csv.gz`` and ``e2e.csv``. Nothing is measured here. The database is that of an H200; no GPU and no
model of these files is in it. The float32 rates of :mod:`gpuledger.ops.predict.sustained` were chosen with the V100,
A100, L4, T4 and P100 of these files in sight. So ``one_gpu_left_out`` predicts each of them with the rates of the
others: V100 and A100 with the share of the peak that the other one reaches, L4, T4 and P100 without a limit by power.
The H100 and the P4 have the same figures in both. The authors repeated each operator, so its inputs are predicted as in
the cache; those of whole models are not. Operators below 20 µs are left out of the table, because those times are
launches.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.analyze.operator_work.formulas import work_of
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.readable import open_readable
from gpuledger.ops.predict.choose import cache_folder, model_of, open_environment_records
from gpuledger.ops.predict.predict import FittedPredictor
from gpuledger.ops.predict.roof import Roof, roof_of_card
from gpuledger.ops.predict.sustained import WIDE
from gpuledger.simulate.catalogue import find_card

DATABASE = Path(__file__).resolve().parents[2] / "tests" / "data" / "h200" / "operator_database.parquet"
CARDS = {
    "NVIDIA_H100_80GB_HBM3": "h100-80gb", "NVIDIA_A100-PCIE-40GB": "a100-40gb", "NVIDIA_A100_80GB_PCIe": "a100-80gb",
    "NVIDIA_A100-SXM4-40GB": "a100-40gb", "Tesla_V100-PCIE-32GB": "v100-32gb", "NVIDIA_L4": "l4", "Tesla_T4": "t4",
    "NVIDIA_T4": "t4", "Tesla_P100-PCIE-16GB": "p100", "Tesla_P4": "p4",
}  # fmt: skip
LEARNED_FROM = ("NVIDIA_A100-PCIE-40GB", "Tesla_V100-PCIE-32GB", "NVIDIA_L4", "Tesla_T4", "Tesla_P100-PCIE-16GB")
"""GPUs whose measurements the float32 rates were chosen with."""
LEAST_NS = 20_000.0
FLAGS = {"autocast": None, "tf32": False, "grad": False}
LAYER = (".h.0", "layer.0", "layers.0")
"""Parts of the paths of modules in the one layer that was traced."""
NOTHING = frozenset(
    ("view", "transpose", "permute", "size", "getitem", "expand", "unsqueeze", "squeeze", "reshape", "t", "getattr")
)
"""Calls that launch no kernel."""
LARGE_NS = 1e6
"""Duration from which a product is large enough to reach the GPU's rate."""
DIRECTIONS = ("forward", "backward")
Row = dict[str, str]
Where = tuple[str, ...]


@dataclass(frozen=True)
class Timed:
    """One operator in one direction, with what it launches, and how often the whole model has it.

    ``keys_alone`` is what it launches when it is measured alone.
    """

    kind: str
    direction: str
    measured_ns: float
    keys: tuple[OperatorKey, ...]
    repeats: int
    keys_alone: tuple[OperatorKey, ...]


def tensor(shape: Sequence[int], dtype: str = "float32", stride: Sequence[int] | None = None) -> dict[str, Any]:
    dense = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    return {"shape": list(shape), "dtype": dtype, "stride": list(stride or dense)}


def call(name: str, *inputs: Any, overload: str = "default") -> OperatorKey:
    return OperatorKey(f"aten.{name}.{overload}", inputs, dict(FLAGS))


# -- operators as torch calls them ------------------------------------------------------------------------------------


def product(m: int, k: int, n: int, *, bias: bool, weight_is_transposed: bool) -> OperatorKey:
    weight = tensor((k, n), stride=(1, k) if weight_is_transposed else None)
    if bias:
        return call("addmm", tensor((n,)), tensor((m, k)), weight)
    return call("mm", tensor((m, k)), weight)


def linear(row: Row, shapes: list[list[int]], out: list[int]) -> tuple[list[OperatorKey], list[OperatorKey]]:
    is_module = row["op"] == "call_module"
    inputs = shapes[0] if is_module else shapes[1]
    m, k, n = math.prod(inputs[:-1]), inputs[-1], out[-1]
    bias = row["target"] != "lm_head"
    forward = product(m, k, n, bias=bias, weight_is_transposed=is_module)
    backward = [
        product(m, n, k, bias=False, weight_is_transposed=not is_module),
        call("mm", tensor((n, m), stride=(1, n)), tensor((m, k))),
    ]
    sums = [call("sum", tensor((m, n)), [0], True, overload="dim_IntList")] if bias else []
    return [forward], backward + sums


def batched(shapes: list[list[int]]) -> tuple[list[OperatorKey], list[OperatorKey]]:
    left, right = shapes[0], shapes[1]
    batch, m, k, n = math.prod(left[:-2]), left[-2], left[-1], right[-1]
    forward = call("bmm", tensor((batch, m, k)), tensor((batch, k, n)))
    backward = [
        call("bmm", tensor((batch, k, m), stride=(m * k, 1, k)), tensor((batch, m, n))),
        call("bmm", tensor((batch, m, n)), tensor((batch, n, k), stride=(k * n, 1, n))),
    ]
    return [forward], backward


def layer_norm(shapes: list[list[int]]) -> tuple[list[OperatorKey], list[OperatorKey]]:
    shape, last = shapes[0], shapes[0][-1]
    rows = [*shape[:-1], 1]
    weights = (tensor((last,)), tensor((last,)))
    forward = call("native_layer_norm", tensor(shape), [last], *weights, 1e-5)
    backward = call(
        "native_layer_norm_backward", tensor(shape), tensor(shape), [last], tensor(rows), tensor(rows), *weights,
        [True, True, True],
    )  # fmt: skip
    return [forward], [backward]


def embedding(shapes: list[list[int]], out: list[int]) -> tuple[list[OperatorKey], list[OperatorKey]]:
    table = tensor((50_000, out[-1]))  # only the rows that are read count
    return [call("embedding", table, tensor(shapes[0], "int64"))], []


def dropout(row: Row, out: list[int]) -> tuple[list[OperatorKey], list[OperatorKey]]:
    if row["mode"] != "train":
        return [], []
    backward = call("native_dropout_backward", tensor(out), tensor(out, "bool"), 1.1)
    return [call("native_dropout", tensor(out), 0.1, True)], [backward]


def dropout_backward_alone(out: list[int]) -> list[OperatorKey]:
    """Return what the backward of dropout launches alone: called with gradients on, unlike in ``backward()``.

    Then it is differentiable again, so the mask becomes float32 and is scaled, before the product.
    """
    whole = tensor(out)
    return [
        call("_to_copy", tensor(out, "bool"), {"kwargs": {"dtype": {"torch": "float32"}}}),
        call("mul", whole, 1.1, overload="Scalar"),
        call("mul", whole, whole, overload="Tensor"),
    ]


def unary(name: str, backward: str) -> Callable[[list[int]], tuple[list[OperatorKey], list[OperatorKey]]]:
    def made(out: list[int]) -> tuple[list[OperatorKey], list[OperatorKey]]:
        return [call(name, tensor(out))], [call(backward, tensor(out), tensor(out))]

    return made


UNARY = {
    "tanh": unary("tanh", "tanh_backward"), "gelu": unary("gelu", "gelu_backward"),
    "relu": unary("relu", "threshold_backward"), "act": unary("gelu", "gelu_backward"),
}  # fmt: skip
BINARY = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "iadd": "add"}


def elementwise(name: str, shapes: list[list[int]], out: list[int]) -> tuple[list[OperatorKey], list[OperatorKey]]:
    operands = [tensor(shape) for shape in shapes if shape != [1]]
    if len(operands) < 2:
        found = call(BINARY[name], tensor(out), 2.0, overload="Tensor")
    else:
        found = call(BINARY[name], operands[0], operands[1], overload="Tensor")
    if name in ("add", "sub", "iadd"):
        return [found], []
    backward = call("mul", tensor(out), tensor(out) if len(operands) > 1 else 2.0, overload="Tensor")
    return [found], [backward] * max(len(operands), 1)


def larger(out: list[int]) -> tuple[list[OperatorKey], list[OperatorKey]]:
    whole, mask, number = tensor(out), tensor(out, "bool"), tensor([])
    backward = [
        call("eq", whole, number, overload="Tensor"), call("div", whole, 2.0, overload="Tensor"),
        call("where", mask, whole, whole, overload="self"), call("lt", whole, number, overload="Tensor"),
        call("masked_fill_", whole, mask, 0.0, overload="Scalar"),
    ]  # fmt: skip
    return [call("maximum", whole, number)], backward


def operators_of(row: Row) -> tuple[str, list[OperatorKey], list[OperatorKey]] | None:
    """Return kind, and the operators that forward and backward launch; None for rows that launch nothing."""
    shapes, out = json.loads(row["in_shapes"]), json.loads(row["out_shape"])
    name, module = row["target"], row["module_class"]
    is_module = row["op"] == "call_module"
    if name in NOTHING or not isinstance(out, list) or not out or not all(isinstance(size, int) for size in out):
        return None
    if (is_module and module == "Linear") or name == "addmm":
        return "linear", *linear(row, shapes, out)
    if name in ("matmul", "bmm"):
        return "batched product", *batched(shapes)
    if name == "layer_norm" or (is_module and module == "LayerNorm"):
        return "layer norm", *layer_norm(shapes)
    if is_module and module in ("Embedding", "OPTLearnedPositionalEmbedding"):
        return "embedding", *embedding(shapes, out)
    if name == "dropout" or (is_module and module == "Dropout"):
        return "dropout", *dropout(row, out)
    if name == "softmax":
        backward = call("_softmax_backward_data", tensor(out), tensor(out), -1, {"torch": "float32"})
        return "softmax", [call("_softmax", tensor(out), -1, False)], [backward]
    return _elementwise_of(row, shapes, out)


def _elementwise_of(
    row: Row, shapes: list[list[int]], out: list[int]
) -> tuple[str, list[OperatorKey], list[OperatorKey]] | None:
    name, module, is_module = row["target"], row["module_class"], row["op"] == "call_module"
    if name in UNARY or (is_module and module in ("NewGELUActivation", "GELUActivation", "ReLU")):
        return "elementwise", *UNARY.get(name, UNARY["relu" if module == "ReLU" else "gelu"])(out)
    if name in BINARY and row["dtype"] == "float32":
        return "elementwise", *elementwise(name, shapes, out)
    if name == "max" and row["dtype"] == "float32" and len(shapes) == 2:
        return "elementwise", *larger(out)
    if name == "pow":
        squares = call("pow", tensor(out), 3.0, overload="Tensor_Scalar")
        return "elementwise", [squares], [squares, call("mul", tensor(out), tensor(out), overload="Tensor")]
    if name == "where":
        masked = call("where", tensor(out, "bool"), tensor(out), tensor([]), overload="self")
        return "elementwise", [masked], [masked, masked]
    if name == "contiguous" and row["dtype"] == "float32" and len(out) == 4:
        strides = (out[1] * out[2] * out[3], out[3], out[1] * out[3], 1)
        return "copy", [call("clone", tensor(out, stride=strides))], []
    return None


# -- rows -------------------------------------------------------------------------------------------------------------


def read_wholes(folder: Path) -> dict[Where, Row]:
    """Return the whole models that were measured plainly on one GPU and whose layers are known."""
    with (folder / "e2e.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not row["variant"] and row["card"] in CARDS]
    return {_where(row): row for row in rows if row["num_layer"] not in ("", "0")}


def _where(row: Row) -> Where:
    return (row["card"], row["model"], row["mode"], row["seq"], row["batch"])


def read_timed(folder: Path, wholes: Mapping[Where, Row]) -> dict[Where, list[Timed]]:
    """Return the operators that launch kernels, by GPU and model, with how often the whole model has each."""
    found: dict[Where, list[Timed]] = {where: [] for where in wholes}
    with gzip.open(folder / "ops.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            where = _where(row)
            operators = operators_of(row) if where in wholes else None
            if operators is None:
                continue
            kind, *directions = operators
            is_layer = any(part in row["module"] for part in LAYER)
            repeats = int(wholes[where]["num_layer"]) if is_layer else 1
            for name, column, keys in zip(DIRECTIONS, ("fw_ms", "bw_ms"), directions, strict=True):
                measured_ns = float(row[column] or 0) * 1e6
                if keys and measured_ns > 0:
                    is_other = (kind, name) == ("dropout", "backward")
                    alone = dropout_backward_alone(json.loads(row["out_shape"])) if is_other else keys
                    found[where].append(Timed(kind, name, measured_ns, tuple(keys), repeats, tuple(alone)))
    return {where: rows for where, rows in found.items() if rows}


def rows_of(where: Where, timed: Mapping[Where, list[Timed]]) -> list[Timed]:
    """Return the operators of a model; from another GPU's trace if this one has none, because they are the same."""
    if where in timed:
        return timed[where]
    return next((rows for other, rows in timed.items() if other[1:] == where[1:]), [])


# -- predictions ------------------------------------------------------------------------------------------------------


class Predictions:
    """Predicted times in ns, from the H200's database and both datasheets."""

    def __init__(self, timed: Mapping[Where, list[Timed]]) -> None:
        self._model = model_of(open_environment_records(open_readable(str(DATABASE))), cache_folder())
        self._timed = timed
        self._known: dict[tuple[tuple[str, bool, bool], OperatorKey], float] = {}

    def of(self, card: str, rows: Sequence[Timed], *, is_left_out: bool = False, is_hot: bool = False) -> list[float]:
        """Return the time of each operator on a GPU; with the float32 rate of the others if it ``is_left_out``."""
        how = (card, is_left_out, is_hot)
        wanted = list(dict.fromkeys(key for row in rows for key in row.keys if (how, key) not in self._known))
        if wanted:
            roof = self._roof_without(card) if is_left_out else roof_of_card(find_card(CARDS[card]))
            costs = FittedPredictor(self._model, roof).costs(wanted, [is_hot] * len(wanted))
            self._known.update({(how, key): cost.time_ns for key, cost in zip(wanted, costs, strict=True)})
        return [sum(self._known[how, key] for key in row.keys) for row in rows]

    def _roof_without(self, card: str) -> Roof:
        listed = find_card(CARDS[card])
        peak, roof = listed.peak_tflop_s["float32"] * 1e3, roof_of_card(listed)
        if card not in LEARNED_FROM:
            return roof
        if listed.compute_capability >= WIDE[0]:
            reached_frac = WIDE[1]
        else:
            like = [other for other in ("NVIDIA_A100-PCIE-40GB", "Tesla_V100-PCIE-32GB") if other != card]
            reached_frac = median(self._reached_frac(other) for other in like)
        return replace(roof, flop_per_ns={**roof.flop_per_ns, "float32": peak * reached_frac})

    def _reached_frac(self, card: str) -> float:
        """Return the share of the float32 peak that a GPU's large products reach, the median."""
        peak = find_card(CARDS[card]).peak_tflop_s["float32"] * 1e3
        large = [
            work_of(row.keys[0]).flops / row.measured_ns / peak
            for where, rows in self._timed.items()
            for row in rows
            if where[0] == card and (row.kind, row.direction) == ("linear", "forward") and row.measured_ns > LARGE_NS
        ]
        return median(large)


def whole_ns(rows: Sequence[Timed], times_ns: Sequence[float]) -> float:
    """Return the time of a whole model: each operator as often as the model has it."""
    return sum(row.repeats * time_ns for row, time_ns in zip(rows, times_ns, strict=True))


def spread(errors: Sequence[float]) -> dict[str, float | int]:
    """Return the number of errors, the median and the largest of their sizes, and the median with sign."""
    sizes = [abs(error) for error in errors]
    return {"n": len(errors), "median_frac": median(sizes), "worst_frac": max(sizes), "bias_frac": median(errors)}


def operator_tables(timed: Mapping[Where, list[Timed]], predicted: Predictions) -> dict[str, Any]:
    """Return the errors of operators by GPU, kind and direction."""
    tables: dict[str, Any] = {}
    for card in sorted({where[0] for where in timed}):
        errors: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"predicted": [], "one_gpu_left_out": []})
        for where, rows in timed.items():
            if where[0] != card:
                continue
            for how, is_left_out in (("predicted", False), ("one_gpu_left_out", True)):
                alone = [replace(row, keys=row.keys_alone) for row in rows]
                for row, time_ns in zip(
                    rows, predicted.of(card, alone, is_left_out=is_left_out, is_hot=True), strict=True
                ):
                    if row.measured_ns >= LEAST_NS:
                        for kind in (row.kind, "all"):
                            errors[f"{kind}, {row.direction}"][how].append(time_ns / row.measured_ns - 1)
        tables[card] = {kind: {how: spread(some) for how, some in one.items()} for kind, one in sorted(errors.items())}
    return tables


def whole_rows(
    wholes: Mapping[Where, Row], timed: Mapping[Where, list[Timed]], predicted: Predictions
) -> list[dict[str, Any]]:
    """Return every whole model: measured, predicted, and what NeuSight's authors predicted."""
    found = []
    for where, row in wholes.items():
        rows = rows_of(where, timed)
        if not rows:
            continue
        measured_ns, theirs = float(row["e2e_ms"]) * 1e6, row["pred_neusight_e2e_ms"]
        ours, left_out = (
            whole_ns(rows, predicted.of(where[0], rows, is_left_out=is_left_out)) / measured_ns - 1
            for is_left_out in (False, True)
        )
        found.append(
            {
                **dict(zip(("gpu", "model", "mode", "length", "batch"), where, strict=True)),
                "measured_ns": measured_ns,
                "predicted_frac": ours,
                "one_gpu_left_out_frac": left_out,
                "neusight_frac": float(theirs) * 1e6 / measured_ns - 1 if theirs else None,
                "has_own_trace": where in timed,
            }
        )
    return found


HOWS = ("predicted_frac", "one_gpu_left_out_frac", "neusight_frac")


def whole_tables(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors of whole models by GPU and mode, on the same rows for all."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["neusight_frac"] is not None:
            for name in (f"{row['gpu']}, {row['mode']}", f"all, {row['mode']}"):
                groups[name].append(row)
    return {name: {how: spread([row[how] for row in some]) for how in HOWS} for name, some in sorted(groups.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    wholes = read_wholes(options.data)
    timed = read_timed(options.data, wholes)
    predicted = Predictions(timed)
    rows = whole_rows(wholes, timed, predicted)
    results = {
        "machine": describe_environment("cpu"),
        "least_ns": LEAST_NS,
        "rows": sum(map(len, timed.values())),
        "operators": operator_tables(timed, predicted),
        "wholes": whole_tables(rows),
        "models": rows,
    }
    write_results(options.out, results)
    for name, table in results["wholes"].items():
        parts = (f"{how} {one['median_frac']:.1%} (worst {one['worst_frac']:.1%})" for how, one in table.items())
        print(f"{name}, n = {table['predicted_frac']['n']}:", *parts)


if __name__ == "__main__":
    main()
