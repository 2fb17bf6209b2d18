"""Train a Llama-shaped model on several GPUs in one way; one process per rank, see sharded_launch.py.

Reads RANK, WORLD_SIZE, STORE and GATE from the environment. Writes step times and the peaks of its rank to
``OUT-WAY.RANK.json``. The GPU is not used before the launcher opens the gate. Each step leaves a file beside the gate.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sharded_models import SIZES, SMALLER, WAYS, build, record_event
from torch import _dynamo  # noqa: F401  what the first optimizer loads

MIB = 1 << 20


def wait_for_turn(rank: int) -> None:
    """Tell the launcher that everything is imported; return when the GPU is free."""
    gate = Path(os.environ["GATE"])
    (gate / f"ready.{rank}").touch()
    while not (gate / "go").exists():
        time.sleep(0.02)


def begin_together(device: torch.device) -> tuple[Any, Any]:
    """Return CUDA events before and after a small collective. The later one is at the same time on all ranks."""
    before = record_event()
    dist.all_reduce(torch.zeros(1, device=device))
    return before, record_event()


def train(way: str, given: argparse.Namespace, device: torch.device, rank: int) -> dict[str, Any]:
    """Train in one way; return this rank's figures."""
    on_gpu = device.type == "cuda"
    size = SMALLER.get(given.size, {}).get(way, given.size)
    torch.manual_seed(0)
    job = build(way, size, device, extra_bytes=round(given.imbalance_mib * MIB) if rank == 1 else 0)
    times_s, first_ms, arrivals_ms, peak_after_window = [], [], [], 0
    is_timed = on_gpu and way == "ddp_events"
    for step in range(given.steps):
        begin = time.perf_counter()
        before, together = begin_together(device) if is_timed else (None, None)
        if given.sleep_ms and rank == 1:
            if on_gpu:
                torch.cuda.synchronize()
            time.sleep(given.sleep_ms / 1e3)
        job.step()
        job.optimizer.step()
        job.optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin)
        (Path(os.environ["GATE"]) / f"step.{rank}.{step + 1}").touch()
        if before is not None and together is not None:
            first_ms.append(before.elapsed_time(together))
            arrivals_ms.append([together.elapsed_time(event) for event in job.events])
            job.events.clear()
        if step + 1 == given.window:
            peak_after_window = torch.cuda.max_memory_allocated() if on_gpu else 0
    return {
        "rank": rank,
        "size": size,
        "step_times_s": times_s,
        "first_ms": first_ms,
        "arrivals_ms": arrivals_ms,
        "peak_after_window_bytes": peak_after_window,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0,
    }


def main() -> None:
    """Train and write this rank's figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("out")
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--window", type=int, default=3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="rank 1 sleeps in every step")
    parser.add_argument("--imbalance-mib", type=float, default=0.0, help="rank 1 keeps an activation of this size")
    given = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = given.device == "cuda"
    torch.set_float32_matmul_precision("high")
    wait_for_turn(rank)
    if on_gpu:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{os.environ['STORE']}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    figures = train(given.way, given, device, rank)
    Path(f"{given.out}-{given.way}.{rank}.json").write_text(json.dumps(figures), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
