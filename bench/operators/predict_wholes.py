"""Compares predictions of whole models with the measured models, with nothing of their architecture in the fit.

For each architecture, such as all sizes of ResNet, every shape family that one of its models uses is left out of the
database. A model is fitted to the rest and predicts each operator of these models. Models that were chosen and measured
after the database was made are predicted from all of it: it has nothing of them, but for shapes that others share. The
sum is compared with the model as a CUDA graph.

The CPU time of an eager step is predicted from the number of its calls, with times per call that are fitted to the
models of other architectures, and for unseen models to all others. The larger of both is compared with the eager step,
if it was measured in turn with its CPU time; otherwise with one that was measured on another day.

Usage: python bench/operators/predict_wholes.py --out bench/operators/results/cpu/predict_wholes.json   (two minutes)
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from host_fit import HostExample, architecture_of, fit_call_ns, read_host_examples

from gpuledger.ops.database.readable import open_readable
from gpuledger.ops.predict.choose import EnvironmentRecords, open_environment_records, roof_of_records
from gpuledger.ops.predict.fit import fit
from gpuledger.ops.predict.predict import FittedPredictor
from gpuledger.ops.totals.predicted_host import counts_of, time_of
from gpuledger.ops.totals.sum import Waiting, sum_up
from gpuledger.ops.workloads.workload import Workload, read_workload

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "h200"


def read_pairs(folder: Path, name: str = "operator_pairs") -> dict[str, list[tuple[Workload, dict[str, Any]]]]:
    """Return workloads with their measured whole models, by architecture."""
    with tarfile.open(DATA / f"{name}.tgz") as packed:
        packed.extractall(folder, filter="data")
    found: dict[str, list[tuple[Workload, dict[str, Any]]]] = defaultdict(list)
    for place in sorted((folder / name).rglob("*.whole.json")):
        workload = read_workload(place.with_name(place.name.replace(".whole.json", ".workload.json")))
        whole = json.loads(place.read_text(encoding="utf-8"))["whole"]
        found[architecture_of(workload.name)].append((workload, whole))
    return found


def predictor_without(shelf: EnvironmentRecords, workloads: list[Workload]) -> tuple[FittedPredictor, int]:
    """Return a predictor fitted without the shape families of some workloads, and the number of its measurements."""
    own = {use.key.digest for workload in workloads for use in workload.uses}
    families = {one.group for one in shelf.examples if one.key.digest in own}
    left = [one for one in shelf.examples if one.group not in families]
    return FittedPredictor(fit(left, roof_of_records(shelf))), len(left)


def median_of(spread: dict[str, float] | None) -> float | None:
    """Return the median of a measurement; None without one."""
    return None if spread is None else spread["median"]


def predicted(
    workload: Workload,
    whole: dict[str, Any],
    predictor: FittedPredictor,
    shelf: EnvironmentRecords,
    call_ns: tuple[float, ...],
    host: HostExample | None,
) -> dict[str, Any]:
    """Return the predicted times of a model beside its measured times."""
    counts = counts_of(workload)
    cpu_ns = None if counts is None else time_of(counts, call_ns)
    total = sum_up(workload, (), shelf.environment, predictor=predictor, waiting=Waiting(cpu_ns))
    return {
        "workload": workload.name,
        "mode": workload.mode,
        "predicted_ns": total.busy_ns,
        "graph_ns": median_of(whole["graph_time_ns"]),
        "predicted_cpu_ns": cpu_ns,
        "cpu_ns": None if host is None or host.waits_for_gpu else host.cpu_ns,
        "predicted_eager_ns": total.step_ns,
        "eager_ns": median_of(whole["time_ns"]) if host is None else host.eager_ns,
        "eager_in_turn": host is not None,
    }


def main() -> None:
    """Predict every pair, and write what was predicted beside what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine = describe_environment("cpu")
    shelf = open_environment_records(open_readable(str(DATA / "operator_database.parquet")))
    hosts = {one.workload.name: one for one in read_host_examples()}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture, pairs in read_pairs(Path(folder)).items():
            predictor, fitted = predictor_without(shelf, [workload for workload, _ in pairs])
            call_ns = fit_call_ns([one for name, one in hosts.items() if architecture_of(name) != architecture])
            for workload, whole in pairs:
                row = predicted(workload, whole, predictor, shelf, call_ns, hosts.get(workload.name))
                rows.append({"fitted_to": fitted, **row})
            print(architecture, len(pairs), "pairs", fitted, "measurements", flush=True)
        later = [pair for pairs in read_pairs(Path(folder), "operator_pairs_unseen").values() for pair in pairs]
        predictor, fitted = predictor_without(shelf, [])
        call_ns = fit_call_ns([one for one in hosts.values() if not one.is_unseen])
        unseen = [
            {"fitted_to": fitted, **predicted(workload, whole, predictor, shelf, call_ns, hosts.get(workload.name))}
            for workload, whole in later
        ]
    found = {"environment": machine, "card": shelf.environment.title, "pairs": rows, "unseen_pairs": unseen}
    write_results(options.out, found)


if __name__ == "__main__":
    main()
