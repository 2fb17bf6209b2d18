"""Checks whether models run the same operators in a CUDA graph as eagerly, and sums those of the graph. Needs no GPU.

For each pair of operator_pairs.py that was measured as a CUDA graph too, the model is captured on a simulated H200
twice: as it is, and with the transformers library informed that a stream is being captured, as during the capture of a
graph. Other libraries do not ask. Operators that are not in the database are predicted. Use the version of transformers
that the pairs were measured with.

Usage: python bench/operators/graph_operators.py --database tests/data/h200/operator_database.parquet --out FILE.json
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from operator_pairs import all_pairs

from gpuledger.ops.database.readable import open_readable
from gpuledger.ops.predict.choose import open_environment_records, stand_in
from gpuledger.ops.totals.cost import MEASURED
from gpuledger.ops.totals.sum import Sum, sum_up
from gpuledger.ops.workloads.captures import asked_for, capture_model, name_of_capture
from gpuledger.ops.workloads.workload import Workload
from gpuledger.ops.workloads.workload_spec import WorkloadSpec

RESULTS = Path(__file__).parent / "results" / "h200"
MEASURED_PAIRS = ("operator_pairs.json", "operator_pairs_training.json")
LIBRARY = "transformers:"
IS_CAPTURING = "transformers.utils.import_utils.is_cuda_stream_capturing"


def specs_by_name() -> dict[str, WorkloadSpec]:
    """Return what can be captured of the library, by the name of its workload."""
    found = [spec for spec in all_pairs().values() if spec.model.startswith(LIBRARY)]
    return {name_of_capture(asked, asked.inputs): spec for spec in found if (asked := asked_for(spec))}


def captured(spec: WorkloadSpec, *, in_graph: bool) -> Workload:
    """Return the operators of a model on a simulated H200, eagerly or as during the capture of a graph."""
    with mock.patch(IS_CAPTURING, return_value=True) if in_graph else nullcontext():
        return capture_model(asked_for(spec), "h200")


def changed_calls(one: Workload, other: Workload) -> int:
    """Return how many calls only one of two workloads has."""
    left, right = ({use.key.text: use.count for use in workload.uses} for workload in (one, other))
    return sum(abs(left.get(key, 0) - right.get(key, 0)) for key in {*left, *right})


def figures_of(total: Sum) -> dict[str, float]:
    """Return the time of a sum, and the share of it that was measured."""
    measured_ns = sum(line.time_ns or 0.0 for line in total.lines if line.source == MEASURED)
    return {"busy_ns": total.busy_ns, "measured_frac": measured_ns / total.busy_ns}


def main() -> None:
    """Capture the pairs, sum them, and write both sums beside the measured graph."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--database", default="tests/data/h200/operator_database.parquet")
    options = parser.parse_args()
    shelf = open_environment_records(open_readable(options.database))
    predictor, _ = stand_in(shelf)
    specs = specs_by_name()
    results: list[dict[str, Any]] = []
    for name in MEASURED_PAIRS:
        for pair in json.loads((RESULTS / name).read_text(encoding="utf-8"))["pairs"]:
            spec = specs.get(pair["workload"])
            if spec is None or pair["graph_ns"] is None:
                continue
            eager, graph = (captured(spec, in_graph=in_graph) for in_graph in (False, True))
            sums = [sum_up(one, shelf.records, shelf.environment, predictor=predictor) for one in (eager, graph)]
            found = {
                "workload": pair["workload"],
                "mode": pair["mode"],
                "graph_ns": pair["graph_ns"],
                "calls": eager.calls,
                "changed_calls": changed_calls(eager, graph),
                "eager_operators": figures_of(sums[0]),
                "graph_operators": figures_of(sums[1]),
            }
            results.append(found)
            shares = (f"{total.busy_ns / pair['graph_ns']:.3f}" for total in sums)
            print(pair["workload"], found["changed_calls"], "calls differ; sums / graph:", *shares, flush=True)
    write_results(options.out, {"environment": describe_environment("cpu"), "pairs": results})


if __name__ == "__main__":
    main()
