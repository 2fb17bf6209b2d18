"""Sums of operators against whole models, of the ancestor's model–input pairs, and of others.

Usage: python bench/operator_pairs.py --book h200.book --folder pairs --out bench/results/h200/operator_pairs.json
       python bench/operator_pairs.py --parts sum --book h200.book --folder pairs --out FILE
       python bench/operator_pairs.py --device cpu --small --out bench/results/cpu/operator_pairs.json
Measuring fills the book and writes workloads and whole models into the folder; sums are made from these, also without
a card. Models come from torchvision and transformers; --small takes two little ones that need neither.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from environment import describe_environment, write_results
from torch import nn

from gpuledger.cli.ops.compare import document_of
from gpuledger.operators.again import step_of
from gpuledger.operators.book import Book, open_book
from gpuledger.operators.captures import asked_for, capture_model
from gpuledger.operators.choose import open_shelf, sum_measured
from gpuledger.operators.compare import Pair, Whole
from gpuledger.operators.fill import fill
from gpuledger.operators.method import Method
from gpuledger.operators.names import name_kernels
from gpuledger.operators.place import Place, find_place
from gpuledger.operators.statistics import Spread
from gpuledger.operators.wanted import Wanted
from gpuledger.operators.whole import measure_whole
from gpuledger.operators.workload import read_workload, to_json

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


def wanted_pairs(options: argparse.Namespace) -> list[Wanted]:
    """Return the workloads that the options ask for."""
    mode: Any = "training" if options.train else "inference"
    if options.small:
        pairs = SMALL
    elif options.transformers:
        pairs = MORE
    else:
        pairs = tuple((f"torchvision:{model}", f"32x3x{size}x{size}") for model, size in ANCESTOR)
    models = set(options.models.split(",")) if options.models else None
    return [Wanted(model, mode, size) for model, size in pairs if models is None or models & _names_of(model, size)]


def _names_of(model: str, size: str) -> set[str]:
    """Return what a pair goes by: ``resnet34``, and ``resnet34@299``."""
    short = model.partition(":")[2].partition("?")[0]
    return {short, f"{short}@{size.rpartition('x')[2]}"}


def measure(options: argparse.Namespace, place: Place, book: Book) -> None:
    """Fill the book, and write each pair's workload and whole model into the folder."""
    method = Method(target_frac=options.target, energy=not options.time_only)
    until_s = time.monotonic() + options.limit_s
    for wanted in wanted_pairs(options):
        if time.monotonic() > until_s:
            break
        torch.manual_seed(0)
        started_s = time.monotonic()
        workload = capture_model(asked_for(wanted), None if place.on_card else "cpu")
        write_results(options.folder / f"{workload.name}.workload.json", to_json(workload))
        captured_s = time.monotonic()
        whole = measure_whole(step_of(workload, place), place, method)
        whole_s = time.monotonic()
        budget_ns = None if math.isinf(until_s) else max(int((until_s - whole_s) * 1e9), 0)
        share = options.energy_share
        filled = fill([workload], book, place, method, energy_share_frac=share, budget_ns=budget_ns)
        took = {
            "capture_s": captured_s - started_s,
            "whole_s": whole_s - captured_s,
            "operators_s": time.monotonic() - whole_s,
        }
        document = {
            "whole": asdict(whole),
            "seconds": took,
            "operators": {"times": asdict(filled.times), "energies": filled.energies and asdict(filled.energies)},
            "method": method.document(),
            "machine": describe_environment(place.device),
        }
        write_results(options.folder / f"{workload.name}.whole.json", document)
        print(
            workload.name,
            {name: round(value, 1) for name, value in took.items()},
            f"{filled.failed} failed",
            flush=True,
        )


def read_whole(document: dict[str, Any]) -> Whole:
    """Return a whole model as it was written."""
    spreads = ("time_ns", "energy_j", "graph_time_ns", "graph_energy_j")
    return Whole(**{name: Spread(**value) if name in spreads and value else value for name, value in document.items()})


def sum_all(options: argparse.Namespace, book: Book) -> dict[str, Any]:
    """Return the sums beside the wholes, of every pair in the folder."""
    shelf = open_shelf(book)
    pairs, machines = [], []
    for place in sorted(options.folder.glob("*.whole.json")):
        document = json.loads(place.read_text(encoding="utf-8"))
        workload = read_workload(place.with_name(place.name.replace(".whole.json", ".workload.json")))
        pairs.append(
            Pair(
                workload.name,
                workload.mode,
                sum_measured(workload, shelf, options.folder / ".models"),
                read_whole(document["whole"]),
            )
        )
        machines.append(document["machine"])
    return {"machine": machines[-1], **document_of(pairs, shelf.environment.to_json())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--book", default="operators.book")
    parser.add_argument("--folder", type=Path, default=Path("operator-pairs"))
    parser.add_argument("--parts", nargs="+", choices=("measure", "sum"), default=["measure", "sum"])
    parser.add_argument("--device")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--time-only", action="store_true")
    parser.add_argument("--target", type=float, default=0.01)
    parser.add_argument("--models", help="only these, by name: resnet18,resnet34@299")
    parser.add_argument("--energy-share", type=float, default=0.9)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no operator after so long")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    book = open_book(options.book)
    if "measure" in options.parts:
        options.folder.mkdir(parents=True, exist_ok=True)
        place = find_place(options.device)
        measure(options, place, book)
        name_kernels(book, place)
    if "sum" in options.parts:
        results = sum_all(options, book)
        write_results(options.out, results)
        print(json.dumps(results["errors"], indent=1))


if __name__ == "__main__":
    main()
