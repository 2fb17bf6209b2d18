"""Sums of operators against whole models, of the ancestor's model–input pairs, and of others.

Usage: python bench/operator_pairs.py --book h200.book --out bench/results/h200/operator_pairs.json
       python bench/operator_pairs.py --device cpu --small --out bench/results/cpu/operator_pairs.json
Models come from torchvision and transformers; --small takes two little ones that need neither.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from environment import describe_environment, write_results
from torch import nn

from gpuledger.cli.ops.compare import document_of
from gpuledger.operators.again import step_of
from gpuledger.operators.book import open_book
from gpuledger.operators.captures import asked_for, capture_model
from gpuledger.operators.choose import open_shelf, sum_measured
from gpuledger.operators.compare import Pair
from gpuledger.operators.fill import fill
from gpuledger.operators.method import Method
from gpuledger.operators.place import find_place
from gpuledger.operators.wanted import Wanted
from gpuledger.operators.whole import measure_whole

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
    models = options.models.split(",") if options.models else None
    return [Wanted(model, mode, size) for model, size in pairs if models is None or _short(model) in models]


def _short(model: str) -> str:
    return model.partition(":")[2].partition("?")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--book", default="operators.book")
    parser.add_argument("--device")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--time-only", action="store_true")
    parser.add_argument("--target", type=float, default=0.01)
    parser.add_argument("--models", help="only these, by name: resnet18,resnet34")
    parser.add_argument("--energy-share", type=float, default=0.9)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no pair after so long")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))
    place, book = find_place(options.device), open_book(options.book)
    method = Method(target_frac=options.target, energy=not options.time_only)
    pairs: list[Pair] = []
    results: dict[str, Any] = {"method": method.document()}
    until_s = time.monotonic() + options.limit_s
    for wanted in wanted_pairs(options):
        if time.monotonic() > until_s:
            break
        torch.manual_seed(0)
        workload = capture_model(asked_for(wanted), None if place.on_card else "cpu")
        filled = fill([workload], book, place, method, energy_share_frac=options.energy_share)
        whole = measure_whole(step_of(workload, place), place, method)
        total = sum_measured(workload, open_shelf(book, place.environment.card))
        pairs.append(Pair(workload.name, workload.mode, total, whole))
        print(workload.name, f"{pairs[-1].time_frac:.3f}", pairs[-1].energy_frac, f"{filled.failed} failed", flush=True)
        results |= document_of(pairs, place.environment.to_json())
        results["machine"] = describe_environment(place.device)
        write_results(options.out, results)


if __name__ == "__main__":
    main()
