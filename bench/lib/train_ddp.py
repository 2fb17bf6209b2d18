"""A plain training on one GPU per rank with DistributedDataParallel and NCCL; it knows nothing of who may be watching.

Usage: torchrun --nproc-per-node 2 bench/lib/train_ddp.py --steps 5
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train a small convolutional network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--bind", action="store_true", help="give init_process_group the device: NCCL connects there")
    arguments = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=device if arguments.bind else None)
    features = [layer for _ in range(6) for layer in (nn.Conv2d(64, 64, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *features, nn.Flatten(), nn.Linear(64 * 32 * 32, 1000))
    trained = DistributedDataParallel(model.to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(trained.parameters())
    for _ in range(arguments.steps):
        images, classes = torch.randn(32, 3, 32, 32).to(device), torch.randint(1000, (32,)).to(device)
        optimizer.zero_grad()
        F.cross_entropy(trained(images), classes).backward()
        optimizer.step()
    torch.cuda.synchronize()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
