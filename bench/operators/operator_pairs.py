"""Compares sums of operators with whole models: the older tool's pairs of model and input, and others.

Usage: python bench/operators/operator_pairs.py --pairs 'inference/*' --database h200.db --folder pairs --out FILE.json
       python bench/operators/operator_pairs.py --pairs 'training/resnet18@*,*/gpt2@512/bfloat16' --time-limit-s 480 …
       python bench/operators/operator_pairs.py --parts sum --database h200.db --folder pairs --out FILE
       python bench/operators/operator_pairs.py --device cpu --pairs 'small/*'
           --out bench/operators/results/cpu/operator_pairs.json
Measuring fills the database and writes workloads and whole models into the folder: all captures first, then model by
model the times of its operators and the whole, then energies, those first that hold most of the models' time. What is
killed
has left what it measured. Sums are made from these, also without a GPU. Models come from torchvision and transformers;
those of ``small/`` need neither.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from torch import nn

from gpuledger.errors import GpuLedgerError
from gpuledger.ops.database.host_overhead import host_step_key
from gpuledger.ops.database.method import Method
from gpuledger.ops.database.operator_database import OperatorDatabase, open_database
from gpuledger.ops.database.statistics import Spread
from gpuledger.ops.measure.captured_models import step_of
from gpuledger.ops.measure.fill import energy_tasks_of, fill
from gpuledger.ops.measure.host_step import host_record, put_host_step
from gpuledger.ops.measure.measure import measure
from gpuledger.ops.measure.measured_device import Device, find_device
from gpuledger.ops.measure.names import name_kernels
from gpuledger.ops.measure.whole import measure_whole
from gpuledger.ops.predict.choose import open_environment_records, stand_in
from gpuledger.ops.totals.compare import Pair, Whole, pairs_document
from gpuledger.ops.totals.sum import sum_up
from gpuledger.ops.workloads.captures import asked_for, capture_model, name_of_capture
from gpuledger.ops.workloads.workload import MODES, Workload, read_workload, to_json
from gpuledger.ops.workloads.workload_spec import WorkloadSpec

ANCESTOR = (
    ("alexnet", 224), ("alexnet", 299), ("convnext_base", 224), ("convnext_base", 384), ("densenet121", 224),
    ("efficientnet_b0", 224), ("efficientnet_b4", 380), ("inception_v3", 299), ("resnet18", 32), ("resnet18", 224),
    ("resnet18", 299), ("resnet34", 56), ("resnet34", 224), ("resnet34", 299), ("resnet50", 224), ("resnet50", 299),
    ("resnet101", 224), ("resnet101", 299),
)  # fmt: skip
"""The ancestor's 18 model–input pairs; its batch is 32."""
MORE = (
    ("torchvision:vit_b_16", "32x3x224x224"), ("torchvision:swin_t", "32x3x224x224"),
    ("transformers:bert", "16x256:int64"), ("transformers:gpt2", "8x512:int64"),
    ("transformers:llama?hidden_size=1024&num_hidden_layers=12&num_attention_heads=16&intermediate_size=2816",
     "4x1024:int64"),
)  # fmt: skip


UNSEEN = (
    *((f"torchvision:{model}", "32x3x224x224") for model in (
        "mobilenet_v3_large", "regnet_y_8gf", "shufflenet_v2_x1_0", "squeezenet1_1", "vgg16_bn", "wide_resnet50_2",
        "mnasnet1_0", "googlenet", "resnext50_32x4d", "convnext_tiny", "efficientnet_v2_s",
    )),
    ("transformers:distilbert", "32x128:int64"),
)  # fmt: skip
"""Twelve models that no rule was made with. Nothing was changed after they were measured."""


def conv_net() -> nn.Module:
    """Return a little convolutional network."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 100),
    )  # fmt: skip


def encoder() -> nn.Module:
    """Return a little Transformer."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


SMALL = (("operator_pairs:conv_net", "16x3x64x64"), ("operator_pairs:encoder", "8x64x128"))
CHUNK = 20
"""Energies between two looks at the clock; within, the order is random."""


def all_pairs() -> dict[str, WorkloadSpec]:
    """Return every workload that can be asked for, by its name: ``training/resnet18@224``, ``…/gpt2@512/bfloat16``."""
    models = [(f"torchvision:{model}", f"32x3x{size}x{size}") for model, size in ANCESTOR]
    found = {}
    for mode in MODES:
        for model, size in [*models, *MORE]:
            found[f"{mode}/{_short(model, size)}"] = WorkloadSpec(model, mode, size)
        for model, size in MORE:
            wanted = WorkloadSpec(model, mode, size, autocast="bfloat16")
            found[f"{mode}/{_short(model, size)}/bfloat16"] = wanted
        for model, size in UNSEEN:
            found[f"unseen/{mode}/{_short(model, size)}"] = WorkloadSpec(model, mode, size)
        for model, size in SMALL:
            found[f"small/{mode}/{_short(model, size)}"] = WorkloadSpec(model, mode, size)
    return found


def _short(model: str, size: str) -> str:
    """Return a model and its input in short: ``resnet34@299``, ``bert@256``."""
    return f"{model.partition(':')[2].partition('?')[0]}@{size.partition(':')[0].rpartition('x')[2]}"


def wanted_pairs(patterns: str) -> list[WorkloadSpec]:
    """Return the workloads that a list of patterns names, each once."""
    known = all_pairs()
    asked = patterns.split(",")
    unknown = [one for one in asked if not fnmatch.filter(known, one)]
    if unknown:
        raise SystemExit(f"--pairs {unknown[0]}: none of that name; known: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(name for one in asked for name in fnmatch.filter(known, one))]


class Campaign:
    """One run: it writes each thing down as soon as it is measured, and begins nothing once its time is over."""

    def __init__(self, options: argparse.Namespace, place: Device, database: OperatorDatabase) -> None:
        self.folder, self.place, self.database = options.folder, place, database
        self.share_frac, self.again = options.energy_coverage, options.again or options.energy_again
        self.energy_again = options.energy_again
        self.method = Method(
            target_frac=options.precision,
            energy=not options.time_only,
            settle_s=options.settle_s,
            window_s=options.window_s,
        )
        whole_window_s = options.window_s if options.whole_window_s is None else options.whole_window_s
        self.whole_method = replace(self.method, window_s=whole_window_s)
        self.is_captured = options.captured
        self.until_s = time.monotonic() + options.time_limit_s
        self.workloads: list[Workload] = []

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self.until_s - time.monotonic()

    @property
    def left_ns(self) -> int | None:
        """Return the same for what takes a budget."""
        return None if math.isinf(self.left_s) else max(int(self.left_s * 1e9), 0)

    def capture(self, pairs: Sequence[WorkloadSpec]) -> None:
        """Capture what is asked for; a model that cannot be captured does not stop the others."""
        for wanted in pairs:
            torch.manual_seed(0)
            try:
                asked = asked_for(wanted)
                kept = self.folder / f"{name_of_capture(asked, asked.inputs)}.workload.json"
                if self.is_captured and kept.exists():
                    self.workloads.append(read_workload(kept))
                    continue
                workload = capture_model(asked, None if self.place.on_card else "cpu")
            except GpuLedgerError as error:
                print(f"not captured: {wanted}: {error.message}", flush=True)
                continue
            write_results(self.folder / f"{workload.name}.workload.json", to_json(workload))
            self.workloads.append(workload)
        self.tell("captured")

    def measure_pairs(self) -> None:
        """Measure, model by model, the time of every operator that the database lacks, and the whole model."""
        times = replace(self.method, energy=False)
        for workload in self.workloads:
            if self.left_s <= 0:
                break
            filled = fill([workload], self.database, self.place, times, budget_ns=self.left_ns)
            self._measure_whole(workload)
            self.tell(f"{workload.name}: {filled.times.measured} operators timed, {filled.failed} failed")

    def _measure_whole(self, workload: Workload) -> None:
        """Measure a whole model whose figures the folder lacks; of one whose joules are there the time alone."""
        place = self.folder / f"{workload.name}.whole.json"
        known = json.loads(place.read_text(encoding="utf-8"))["whole"] if place.exists() else {}
        has_energy = known.get("energy_j") is not None or not self.method.energy or self.place.sensors is None
        if self.left_s <= 0 or (known and has_energy and not self.again):
            return
        has_energy = has_energy and not self.energy_again
        method = replace(self.whole_method, energy=not has_energy)
        started_s = time.monotonic()
        torch.manual_seed(0)
        try:
            whole = measure_whole(step_of(workload, self.place, trusted=True), self.place, method)
        except (GpuLedgerError, RuntimeError) as error:
            print(f"{workload.name}: {type(error).__name__}: {error}", flush=True)
            return
        if whole.host_ns is not None:
            put_host_step(self.database, self.place, workload, whole.host_ns)
        energies = ("energy_j", "graph_energy_j", "base_w", "energy_step_ns")
        kept = {name: known.get(name) for name in energies if has_energy}
        document = {
            "whole": {**asdict(whole), **kept},
            "seconds": {"whole_s": time.monotonic() - started_s},
            "method": method.document(),
            "machine": describe_environment(self.place.device),
        }
        write_results(place, document)
        if self.place.on_card:
            torch.cuda.empty_cache()

    def measure_energies(self) -> None:
        """Measure energies, those first that hold most of the workloads' time."""
        if not self.method.energy or self.place.sensors is None:
            return
        shares = self.shares()
        uses = [use for workload in self.workloads for use in workload.uses]
        tasks = energy_tasks_of(self.workloads, uses, self.database, self.place.environment, self.share_frac)
        tasks.sort(key=lambda task: -shares.get(task.key.digest, 0.0))
        for start in range(0, len(tasks), CHUNK):
            if self.left_s <= 0:
                break
            some = tasks[start : start + CHUNK]
            done = measure(some, self.database, self.place, self.method, budget_ns=self.left_ns)
            self.tell(f"energies {start + len(some)} of {len(tasks)}: {done}")

    def shares(self) -> dict[str, float]:
        """Return what each operator holds of the workloads' times, added up, by digest."""
        records = self.database.records(self.place.environment)
        shares: dict[str, float] = {}
        for workload in self.workloads:
            total = sum_up(workload, records, self.place.environment)
            for line in total.lines:
                digest = line.use.key.digest
                shares[digest] = shares.get(digest, 0.0) + (line.time_ns or 0.0) / max(total.busy_ns, 1.0)
        return shares

    def tell(self, text: str) -> None:
        """Say what is done."""
        print(f"{text}; {self.left_s:.0f} s left", flush=True)


def read_whole(document: dict[str, Any]) -> Whole:
    """Return a whole model as it was written."""
    spreads = ("time_ns", "energy_j", "graph_time_ns", "graph_energy_j", "host_ns")
    return Whole(**{name: Spread(**value) if name in spreads and value else value for name, value in document.items()})


def put_host_steps(database: OperatorDatabase, measured: Sequence[tuple[Workload, Whole]]) -> None:
    """Store the host time of each model that was measured in turn with it, in place of one of another session."""
    environment = open_environment_records(database).environment
    for workload, whole in measured:
        key = host_step_key(workload.settings, workload.mode)
        if key is not None and whole.host_ns is not None:
            database.put_keys([key])
            database.put_records([host_record(key, environment, whole.host_ns, {"how": "step"}, time.time_ns())])


def sum_all(options: argparse.Namespace, database: OperatorDatabase) -> dict[str, Any]:
    """Return the sums beside the wholes, of every pair in the folder."""
    if not any(options.folder.glob("*.whole.json")):
        raise SystemExit(f"{options.folder}: no whole model was measured, so there is nothing to hold sums against")
    measured = []
    for place in sorted(options.folder.glob("*.whole.json")):
        document = json.loads(place.read_text(encoding="utf-8"))
        workload = read_workload(place.with_name(place.name.replace(".whole.json", ".workload.json")))
        measured.append((workload, read_whole(document["whole"]), document["machine"]))
    put_host_steps(database, [(workload, whole) for workload, whole, _ in measured])
    shelf = open_environment_records(database)
    powers, _ = stand_in(shelf, options.folder / ".models")
    pairs, machines = [], []
    for workload, whole, machine in measured:
        total = sum_up(workload, shelf.records, shelf.environment, energy_predictor=powers)
        pairs.append(Pair(workload.name, workload.mode, total, whole))
        machines.append(machine)
    latest = max(machines, key=lambda machine: str(machine["date"]))
    sessions = sorted({(str(machine["date"])[:10], str(machine["commit"])) for machine in machines})
    return {"machine": latest, "sessions": sessions, **pairs_document(pairs, shelf.environment.to_json())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--database", default="operators.db")
    parser.add_argument("--folder", type=Path, default=Path("operator-pairs"))
    parser.add_argument("--parts", nargs="+", choices=("measure", "sum"), default=["measure", "sum"])
    parser.add_argument("--device")
    parser.add_argument("--pairs", default="inference/*", help="names as in training/resnet18@224, with * and ?")
    parser.add_argument("--time-only", action="store_true")
    parser.add_argument("--precision", type=float, default=0.01, help="share of the median time")
    parser.add_argument("--energy-coverage", type=float, default=0.9, help="share of a workload's time")
    parser.add_argument("--again", action="store_true", help="measure whole models in the folder again")
    parser.add_argument("--energy-again", action="store_true", help="measure the energy of whole models again as well")
    parser.add_argument("--whole-only", action="store_true", help="measure energy of whole models only")
    parser.add_argument("--settle-s", type=float, default=Method.settle_s, help="load before an energy measurement")
    parser.add_argument("--window-s", type=float, default=Method.window_s, help="one energy measurement")
    parser.add_argument(
        "--whole-window-s",
        type=float,
        help="the same for whole models",
    )
    parser.add_argument("--captured", action="store_true", help="do not capture workloads that are in the folder again")
    parser.add_argument("--time-limit-s", type=float, default=math.inf, help="start no operator after this time")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    database = open_database(options.database)
    if "measure" in options.parts:
        options.folder.mkdir(parents=True, exist_ok=True)
        place = find_device(options.device)
        campaign = Campaign(options, place, database)
        campaign.capture(wanted_pairs(options.pairs))
        campaign.measure_pairs()
        if not options.whole_only:
            campaign.measure_energies()
        campaign.tell(f"{name_kernels(database, place)} operators' kernels named")
    if "sum" in options.parts:
        results = sum_all(options, database)
        write_results(options.out, results)
        print(json.dumps(results["errors"], indent=1))


if __name__ == "__main__":
    main()
