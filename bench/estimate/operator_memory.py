r"""Measures the memory of operators beside their inputs on a GPU, and compares it with what an estimate counts.

Each operator runs on its own stream, twice, and the second call is measured, forward and backward: the peak above what
was allocated before, what is held after it, and ``kept``, what stays when all results are gone. An estimate is good if
each of these is within 2 % and 0.6 MiB. Layouts are compared, too, but not counted.

``first`` are the operators with which the rules were made, ``second`` others, which were chosen and estimated before
they were measured. A later estimate of ``second`` is no longer blind: some rules were made after the comparison.
``third`` has operators, dtypes and layouts that both lack, ``fourth`` other sizes and options. Each of the two has a
file of its own.

Usage: python bench/estimate/operator_memory.py measure --out bench/estimate/results/h200/operator_memory.json
       python bench/estimate/operator_memory.py measure --sets third \
           --out bench/estimate/results/h200/operator_memory_third.json   # and fourth, in the same way
       python bench/estimate/operator_memory.py estimate --out bench/estimate/results/h200/operator_memory.json
           [--as estimated] [--sets first,second]   # needs no GPU; adds a column to the file
       python bench/estimate/operator_memory.py differences --out … [--as estimated]   # prints them
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from operator_cases import List, measure
from operators_first import FIRST
from operators_fourth import FOURTH
from operators_second import SECOND
from operators_third import THIRD

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

SETS = {"first": FIRST, "second": SECOND, "third": THIRD, "fourth": FOURTH}
SHARE, MIB = 0.02, 1 << 20
SLACK_BYTES = 0.6 * MIB
PARTS = ("forward", "backward")


def run(operators: List) -> dict[str, Any]:
    """Return the memory of each operator, or the error that it raised."""
    found: dict[str, Any] = {}
    gc.freeze()  # each measurement collects garbage
    for name, (make, call) in operators.cases.items():
        torch.manual_seed(0)
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                found[name] = measure(make, call)
        except Exception as error:  # one of them, such as an operator that is not known here
            found[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        torch.cuda.empty_cache()
    return found


def simulated(operators: List) -> dict[str, Any]:
    """Return the memory of each operator on a simulated H200."""
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), lambda sentence: None):
        return run(operators)


def differences(measured: dict[str, Any], estimated: dict[str, Any]) -> list[str]:
    """Return what of an operator's memory differs, empty if the estimate is good."""
    if "error" in measured or "error" in estimated:
        same = ("error" in measured) == ("error" in estimated)
        return [] if same else [f"error: {measured.get('error', 'none')}, {estimated.get('error', 'none')}"]
    pairs = [("kept", measured["kept"], estimated["kept"])]
    for part in PARTS:
        if (part in measured) != (part in estimated):
            return [f"{part}: only in one of both"]
        for place, what in enumerate(("peak", "held") if part in measured else ()):
            pairs.append((f"{part} {what}", measured[part][place], estimated[part][place]))
    return [
        f"{what}: {true / MIB:.2f} MiB, estimated {guess / MIB:.2f} MiB"
        for what, true, guess in pairs
        if abs(guess - true) > SHARE * abs(true) + SLACK_BYTES
    ]


def summary(rows: dict[str, Any], column: str) -> dict[str, int]:
    """Return the number of operators with an estimate, and how many of these are good."""
    both = [row for row in rows.values() if column in row and "measured" in row]
    return {"operators": len(both), "good": sum(not differences(row["measured"], row[column]) for row in both)}


def main() -> None:
    """Measure, estimate or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "estimate", "differences"))
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--as", dest="column", default="estimated")
    parser.add_argument("--sets", default="first,second")
    given = parser.parse_args()
    results = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {"sets": {}}
    for name in given.sets.split(","):
        rows = results["sets"].setdefault(name, {"rows": {}, "summary": {}})["rows"]
        if given.what == "differences":
            for operator, row in rows.items():
                for one in differences(row["measured"], row[given.column]):
                    print(f"{name:8}{operator:45}{one}")
            continue
        column = "measured" if given.what == "measure" else given.column
        found = run(SETS[name]) if given.what == "measure" else simulated(SETS[name])
        for operator, one in found.items():
            rows.setdefault(operator, {})[column] = one
    if given.what == "differences":
        return
    results["measured_on" if given.what == "measure" else f"{given.column}_on"] = describe_environment(
        "cuda" if given.what == "measure" else "cpu"
    )
    for one in results["sets"].values():
        columns = {column for row in one["rows"].values() for column in row} - {"measured"}
        one["summary"] = {column: summary(one["rows"], column) for column in sorted(columns)}
        print(one["summary"])
    write(given.out, results)


def write(out: Path, results: dict[str, Any]) -> None:
    """Write the results with an operator per line."""
    write_results(out, {**results, "sets": {name: {**one, "rows": {}} for name, one in results["sets"].items()}})
    text = out.read_text(encoding="utf-8")
    for one in results["sets"].values():
        lines = [f"    {json.dumps(operator)}: {json.dumps(row)}" for operator, row in one["rows"].items()]
        text = text.replace('"rows": {}', '"rows": {\n' + ",\n".join(lines) + "\n   }", 1)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
