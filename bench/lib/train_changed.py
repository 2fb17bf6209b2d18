"""A plain training of one model, as it is and with changes that a finding suggests, one after the other.

Usage: python bench/lib/train_changed.py gpt2 --change half --change checkpoint=transformer.h.*
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import gc
import json
from collections.abc import Callable
from contextlib import nullcontext

import torch
from models import MODELS, Batch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

SAMPLES = {"gpt2": 8, "bert": 16, "vit": 32, "resnet50": 32}
CHANGES = ("none", "half", "checkpoint", "autocast")


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss: the model's own for token ids, otherwise the cross entropy of its classes."""
    if len(batch) == 1:
        loss: Tensor = model(batch[0], labels=batch[0]).loss
        return loss
    return F.cross_entropy(model(batch[0]), batch[1])


def checkpoint_modules(model: nn.Module, pattern: str) -> int:
    """Checkpoint the modules whose paths match, such as ``transformer.h.*``; return how many there are."""
    depth = pattern.count(".")
    found = [
        module
        for path, module in model.named_modules()
        if path and path.count(".") == depth and fnmatch.fnmatchcase(path, pattern)
    ]
    for module in found:
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
    return len(found)


def train_step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, parts: int, *, low: bool) -> None:
    """Train one step on ``parts`` batches."""
    optimizer.zero_grad(set_to_none=True)
    for _ in range(parts):
        with torch.autocast("cuda", dtype=torch.bfloat16) if low else nullcontext():
            value = loss()
        value.backward()
    optimizer.step()


def train(name: str, change: str, steps: int = 4) -> dict[str, int]:
    """Train a new model with one change, such as ``checkpoint=transformer.h.*``; return its peak bytes."""
    kind, _, pattern = change.partition("=")
    gc.collect()
    torch.cuda.empty_cache()
    if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):  # each training allocates its own
        torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.reset_peak_memory_stats()
    left_bytes = torch.cuda.memory_allocated()
    torch.manual_seed(0)
    parts = 2 if kind == "half" else 1
    workload = MODELS[name].build("cuda", batch_size=SAMPLES[name] // parts)
    (model,), (optimizer,) = workload.models, workload.optimizers
    count = checkpoint_modules(model, pattern) if kind == "checkpoint" else 0
    for _ in range(steps):
        train_step(lambda: loss_of(model, workload.make_batch()), optimizer, parts, low=kind == "autocast")
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() - left_bytes,
        "left_bytes": left_bytes,
        "checkpointed": count,
    }


def main() -> None:
    """Train four steps for each change, and print one line of JSON: change -> peak bytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SAMPLES)
    parser.add_argument("--change", action="append", help=f"one of {', '.join(CHANGES)}; checkpoint=PATHS, with *")
    arguments = parser.parse_args()
    torch.cuda.init()
    print(json.dumps({change: train(arguments.model, change) for change in arguments.change or ["none"]}))


if __name__ == "__main__":
    main()
