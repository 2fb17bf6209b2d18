"""Fits the time of each kind of call to the measured CPU times of whole models, and reads these."""

from __future__ import annotations

import json
import re
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from gpuledger.ops.totals.predicted_host import StepCounts, counts_of, time_of
from gpuledger.ops.workloads.workload import Workload, read_workload

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "h200"
RESULTS = ROOT / "bench" / "operators" / "results" / "h200"
MEASURED = {"operator_pairs": "operator_pairs_host.json", "operator_pairs_unseen": "operator_pairs_unseen.json"}
"""Folders of workloads, and the results with the CPU times of their models."""
QUEUE_LAUNCHES = 800
"""A step with more launches than the GPU's queue holds (about a thousand kernels, some operators have several) waits
for the GPU."""
ROUNDS = 40
SMALL_FRAC = 0.03
"""Errors below this weigh like it in the fit of absolute errors."""


@dataclass(frozen=True)
class HostExample:
    """One model with the measured CPU time of its step.

    Attributes:
        is_unseen: Whether it was chosen and measured after the database was made.
        cpu_ns: CPU time of a step, measured in turn with ``eager_ns``.
        gpu_ns: Time of its operators.
    """

    workload: Workload
    counts: StepCounts
    cpu_ns: float
    gpu_ns: float
    eager_ns: float
    is_unseen: bool

    @property
    def waits_for_gpu(self) -> bool:
        """Return whether its CPU time can include a wait for a full queue of launches."""
        return self.counts.operators > QUEUE_LAUNCHES and self.gpu_ns > 0.8 * self.cpu_ns


def architecture_of(name: str) -> str:
    """Return the architecture of a workload: ``resnet`` of ``resnet18-training-32x3x224x224``."""
    found = re.match(r"[a-z]+", name)
    assert found is not None, name
    return found[0]


def read_host_examples() -> list[HostExample]:
    """Return all models whose CPU time was measured and whose workload is kept."""
    found = []
    for name, results in MEASURED.items():
        pairs = {pair["workload"]: pair for pair in json.loads((RESULTS / results).read_text("utf-8"))["pairs"]}
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(DATA / f"{name}.tgz") as packed:
                packed.extractall(folder, filter="data")
            workloads = [read_workload(path) for path in sorted(Path(folder).rglob("*.workload.json"))]
        found += [_example(one, pairs[one.name], name.endswith("unseen")) for one in workloads if one.name in pairs]
    return [one for one in found if one is not None]


def _example(workload: Workload, pair: dict[str, Any], is_unseen: bool) -> HostExample | None:
    counts = counts_of(workload)
    if counts is None or not pair["is_host_measured"]:
        return None
    return HostExample(workload, counts, pair["host_ns"], pair["busy_ns"], pair["whole_ns"], is_unseen)


def fit_call_ns(examples: Sequence[HostExample]) -> tuple[float, ...]:
    """Return the time of one call of each kind in ns: least absolute relative errors, and no time below 0."""
    used = [one for one in examples if not one.waits_for_gpu]
    rows = np.array([one.counts.row for one in used], dtype=float)
    cpu_ns = np.array([one.cpu_ns for one in used])
    weights = np.ones(len(used))
    times = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):  # reweighted least squares
        times, _rest = nnls(rows / cpu_ns[:, None] * weights[:, None], weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(rows @ times / cpu_ns - 1), SMALL_FRAC))
    return tuple(round(float(one), -1) for one in times)


def predict_left_out(examples: Sequence[HostExample]) -> list[float]:
    """Return the predicted CPU time of each model in ns, fitted to the models of other architectures."""
    names = [architecture_of(one.workload.name) for one in examples]
    fitted = {
        left: fit_call_ns([one for one, name in zip(examples, names, strict=True) if name != left])
        for left in dict.fromkeys(names)
    }
    return [time_of(one.counts, fitted[name]) for one, name in zip(examples, names, strict=True)]
