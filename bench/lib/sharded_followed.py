"""Train a Llama-shaped model in one way as torchrun would start it, to be estimated without a GPU.

Usage: gpuledger estimate --world-size 2 bench/lib/sharded_followed.py WAY [SIZE]
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from sharded_models import SMALLER, build

STEPS = 20


def main() -> None:
    """Train as bench/lib/sharded_train.py does, without its files and times."""
    way, size = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "1b"
    rank = int(os.environ["RANK"])
    torch.set_float32_matmul_precision("high")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    job = build(way, SMALLER.get(size, {}).get(way, size), torch.device("cuda", rank))
    for _ in range(STEPS):
        job.step()
        job.optimizer.step()
        job.optimizer.zero_grad()
        torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
