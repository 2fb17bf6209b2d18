"""A plain training of one model, as it is or with one change that a finding suggests.

Usage: python bench/lib/train_changed.py gpt2 --change half
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
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


def main() -> None:
    """Train four steps and print one line of JSON with the peak bytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=SAMPLES)
    parser.add_argument("--change", choices=CHANGES, default="none")
    parser.add_argument("--modules", default="", help="paths of the modules to checkpoint, with *")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    parts = 2 if arguments.change == "half" else 1
    workload = MODELS[arguments.model].build("cuda", batch_size=SAMPLES[arguments.model] // parts)
    (model,), (optimizer,) = workload.models, workload.optimizers
    count = checkpoint_modules(model, arguments.modules) if arguments.change == "checkpoint" else 0
    for _ in range(4):
        train_step(lambda: loss_of(model, workload.make_batch()), optimizer, parts, low=arguments.change == "autocast")
    print(json.dumps({"peak_allocated_bytes": torch.cuda.max_memory_allocated(), "checkpointed": count}))


if __name__ == "__main__":
    main()
