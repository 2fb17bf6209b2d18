"""Judges whether FLOPs and bytes tell the watts of an operator that was not measured better than the assumed weights.

By the committed book: watts above base of each record, by class of work (analyze/work_class.py), FLOP/s and bytes/s.
Every type of operator is left out in turn and told by the others; errors are by time, over what was measured. The
assumed weights are scaled to the same joules. What lies between is drawn anew over types of operators.

Usage: python bench/energy_classes.py --out bench/results/h200/energy_classes.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from environment import write_results
from numpy.typing import NDArray
from scipy.optimize import minimize

from gpuledger.analyze.work_class import CLASSES, class_of
from gpuledger.operators import watts
from gpuledger.operators.contents import Contents, read_parquet

F64 = NDArray[np.float64]
BOOK = Path(__file__).parent / "results" / "h200" / "operator_book.parquet"
CARD = "NVIDIA H200"
DRAWS = 4000


@dataclass(frozen=True)
class Measured:
    """One entry per record: its type of operator, whether its class is a matrix product, and rates per second.

    ``plain_tflops`` are of kernels on the common cores, ``tensor_tflops`` of those on tensor cores (their names say).
    """

    operator: NDArray[np.str_]
    is_matrix: NDArray[np.bool_]
    assumed: F64
    watts: F64
    ns: F64
    plain_tflops: F64
    tensor_tflops: F64
    tbytes: F64


def measured_in(contents: Contents) -> Measured:
    """Return every record of the card with joules, and with FLOPs or bytes."""
    rows: list[tuple[Any, ...]] = []
    for record in contents.records:
        key, power_w, ns = contents.keys[record.key_digest], watts.dynamic_w(record), record.time_median_ns
        is_card = contents.environments[record.environment_digest].card == CARD
        if not is_card or power_w is None or not ns or not (record.flops or record.bytes):
            continue
        name, kernels = watts.launcher_of(key), " ".join(record.kernels or ())
        on_tensor = any(word in kernels for word in ("tf32", "tensorop", "1688"))
        tflops, tbytes = (record.flops or 0) / ns / 1e3, (record.bytes or 0) / ns / 1e3
        number = class_of(name, "host")
        rates = (0.0 if on_tensor else tflops, tflops if on_tensor else 0.0, tbytes)
        rows.append((name, number == 0, CLASSES[number].power, power_w, ns, *rates))
    names, is_matrix, *numbers = zip(*rows, strict=True)
    return Measured(np.array(names), np.array(is_matrix), *(np.array(one, dtype=np.float64) for one in numbers))


def by_class(book: Measured, values: F64) -> F64:
    """Return one constant for matrix products and one for all else."""
    return np.where(book.is_matrix, values[0], values[1])


def by_use(book: Measured, values: F64) -> F64:
    """Return a floor by class, and what saturates with the use of cores, tensor cores and memory."""
    used = book.plain_tflops / abs(values[3]) + book.tensor_tflops / abs(values[4]) + book.tbytes / abs(values[5])
    found: F64 = by_class(book, values) + values[2] * (1 - np.exp(-used))
    return found


FORMS: dict[str, tuple[Callable[[Measured, F64], F64], tuple[float, ...]]] = {
    "constant_by_class": (by_class, (500, 360)),
    "floor_by_class_and_use": (by_use, (100, 50, 450, 15, 60, 1)),
}
"""Each with where its search begins: watts, and the TFLOP/s and TB/s at which use is 63 % of what it can make."""


def fit(book: Measured, form: Callable[[Measured, F64], F64], begin: tuple[float, ...], chosen: F64) -> F64:
    """Return the coefficients with the least absolute error by time over the chosen records."""

    def off_j(values: F64) -> float:
        return float(np.abs(form(book, values) - book.watts) @ (chosen * book.ns)) / float(book.ns.sum())

    found: F64 = minimize(off_j, begin, method="Nelder-Mead", options={"maxiter": 4000, "maxfev": 4000}).x
    return found


def judge(book: Measured) -> dict[str, Any]:
    """Return how far each form is off for types of operators that it has not seen, and how far the weights are."""
    types = sorted(set(book.operator))
    total_j = book.watts * book.ns
    scaled = book.assumed * (total_j.sum() / float(book.assumed @ book.ns))
    told = {"assumed_weights": scaled}
    found: dict[str, Any] = {"records": int(book.ns.size), "types": len(types), "forms": {}}
    for name, (form, begin) in FORMS.items():
        told[name] = np.zeros(book.ns.size)
        for one in types:
            others = (book.operator != one).astype(np.float64)
            told[name] = np.where(others == 0, form(book, fit(book, form, begin, others)), told[name])
        found["forms"][name] = {"coefficients": fit(book, form, begin, np.ones(book.ns.size)).round(2).tolist()}
    of_type = np.array([[float(total_j[book.operator == one].sum())] for one in types])[:, 0]
    off = {
        name: np.array([float((np.abs(by - book.watts) * book.ns)[book.operator == one].sum()) for one in types])
        for name, by in told.items()
    }
    drawn = np.random.default_rng(0).integers(0, len(types), (DRAWS, len(types)))
    for name, values in off.items():
        entry = found["forms"].setdefault(name, {})
        entry["off_by_time"] = float(values.sum() / of_type.sum())
        entry["off_of_a_record_median"] = float(np.median(np.abs(told[name] - book.watts) / np.maximum(book.watts, 1)))
        against = (values - off["assumed_weights"])[drawn].sum(1) / of_type[drawn].sum(1)
        entry["less_the_weights_95"] = [float(one) for one in np.quantile(against, (0.025, 0.975))]
        entry["by_type"] = {one: float(values[place] / of_type[place]) for place, one in enumerate(types)}
    return found


def main() -> None:
    """Judge and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--book", type=Path, default=BOOK)
    arguments = parser.parse_args()
    results = {"book": arguments.book.name, "card": CARD, **judge(measured_in(read_parquet(arguments.book)))}
    write_results(arguments.out, results)
    for name, entry in results["forms"].items():
        print(name, round(entry["off_by_time"], 3), [round(one, 3) for one in entry["less_the_weights_95"]])


if __name__ == "__main__":
    main()
