"""Compares predictions of whole models with the measured models, with nothing of their architecture in the fit.

For each architecture, such as all sizes of ResNet, every shape family that one of its models uses is left out of the
database. A model is fitted to the rest and predicts each operator of these models. Models that were chosen and measured
after the database was made are predicted from all of it: it has nothing of them, but for shapes that others share. The
sum is compared with the model as a CUDA graph and launched eagerly. The prediction has no time of the CPU, so models
that wait for it take longer.

Usage: python bench/operators/predict_wholes.py --out bench/operators/results/cpu/predict_wholes.json   (two minutes)
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tarfile
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.ops.database.readable import open_readable
from gpuledger.ops.predict.choose import EnvironmentRecords, open_environment_records, roof_of_records
from gpuledger.ops.predict.fit import fit
from gpuledger.ops.predict.predict import FittedPredictor
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.workload import Workload, read_workload

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "h200"


def architecture_of(name: str) -> str:
    """Return the architecture of a workload: ``resnet`` of ``resnet18-training-32x3x224x224``."""
    found = re.match(r"[a-z]+", name)
    assert found is not None, name
    return found[0]


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
    workload: Workload, whole: dict[str, Any], predictor: FittedPredictor, fitted: int, shelf: EnvironmentRecords
) -> dict[str, Any]:
    """Return the predicted time of a model beside its measured times."""
    total = sum_up(workload, (), shelf.environment, predictor=predictor)
    return {
        "workload": workload.name,
        "mode": workload.mode,
        "fitted_to": fitted,
        "predicted_ns": total.busy_ns,
        "graph_ns": median_of(whole["graph_time_ns"]),
        "eager_ns": median_of(whole["time_ns"]),
    }


def main() -> None:
    """Predict every pair, and write what was predicted beside what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    machine = describe_environment("cpu")
    shelf = open_environment_records(open_readable(str(DATA / "operator_database.parquet")))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture, pairs in read_pairs(Path(folder)).items():
            predictor, fitted = predictor_without(shelf, [workload for workload, _ in pairs])
            rows += [predicted(workload, whole, predictor, fitted, shelf) for workload, whole in pairs]
            print(architecture, len(pairs), "pairs", fitted, "measurements", flush=True)
        later = [pair for pairs in read_pairs(Path(folder), "operator_pairs_unseen").values() for pair in pairs]
        predictor, fitted = predictor_without(shelf, [])
        unseen = [predicted(workload, whole, predictor, fitted, shelf) for workload, whole in later]
    found = {"environment": machine, "card": shelf.environment.title, "pairs": rows, "unseen_pairs": unseen}
    write_results(options.out, found)


if __name__ == "__main__":
    main()
