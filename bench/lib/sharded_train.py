"""Train a Llama-shaped model on several GPUs in one of several ways; one process per rank, started by bench scripts.

Reads RANK, WORLD_SIZE and STORE from the environment. Writes step times and the peaks of its rank to the file
``OUT.RANK.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import scaled_dot_product_attention, silu

SIZES = {
    "tiny": (64, 2, 4, 176, 256, 2, 32),
    "small": (1024, 8, 16, 2752, 32000, 2, 512),
    "1b": (2048, 24, 16, 5504, 32000, 2, 1024),
}
"""Width, layers, heads, inner width, words, batch size, sequence length."""
WAYS = ("fsdp", "fsdp_keep", "fsdp_bf16", "hsdp", "ddp", "ddp_views", "tp", "pp")


class Block(nn.Module):
    """One layer of a Llama-shaped model, without rotary positions."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        y = self.norm1(x)
        q, k, v = (
            p(y).unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        x = x + self.o(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """Embedding, layers, norm and head; a stage of a pipeline has some of them."""

    def __init__(self, size: str, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        width, layers, heads, inner, words, _, _ = SIZES[size]
        mine = range(layers * stage // stages, layers * (stage + 1) // stages)
        self.embed = nn.Embedding(words, width) if stage == 0 else None
        self.layers = nn.ModuleDict({str(number): Block(width, heads, inner) for number in mine})
        last = stage == stages - 1
        self.norm = nn.RMSNorm(width) if last else None
        self.lm_head = nn.Linear(width, words, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, or the input of the next stage."""
        if self.embed is not None:
            x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.lm_head is None or self.norm is None else self.lm_head(self.norm(x))


def shard(model: Model, way: str, device: str) -> nn.Module:
    """Return the model, divided among the ranks."""
    world = dist.get_world_size()
    if way.startswith(("fsdp", "hsdp")):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        shape, names = ((1, world), ("replicate", "dp")) if way == "hsdp" else ((world,), ("dp",))
        policy: dict[str, Any] = {"mesh": init_device_mesh(device, shape, mesh_dim_names=names)}
        policy["reshard_after_forward"] = way != "fsdp_keep"
        if way == "fsdp_bf16":
            policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.layers.values():
            fully_shard(layer, **policy)
        return fully_shard(model, **policy)
    if way.startswith("ddp"):
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=way == "ddp_views")
    if way == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh(device, (world,), mesh_dim_names=("tp",))
        plan = dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel()) | dict.fromkeys(
            ("o", "down"), RowwiseParallel()
        )
        for layer in model.layers.values():
            parallelize_module(layer, mesh, plan)
    return model


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Return the loss."""
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), target.flatten())


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
    given = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = given.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=world)
    torch.manual_seed(0)
    words, batch, length = SIZES[given.size][4:]
    pipeline = given.way == "pp"
    with device:
        model = Model(given.size, rank, world) if pipeline else Model(given.size)
    model = shard(model, given.way, given.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, words, (batch * (2 if pipeline else 1), length), device=device)
    schedule: Any = None
    if pipeline:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        schedule = Schedule1F1B(PipelineStage(model, rank, world, device), n_microbatches=2, loss_fn=loss_of)
    cast = torch.autocast(given.device, torch.bfloat16) if given.way != "fsdp_bf16" and not pipeline else nullcontext()
    times_s, peak_after_window = [], 0
    for step in range(given.steps):
        begin = time.perf_counter()
        if given.sleep_ms and rank == 1:
            time.sleep(given.sleep_ms / 1e3)
        if pipeline:
            schedule.step(*([tokens] if rank == 0 else []), **({"target": tokens} if rank == world - 1 else {}))
        else:
            with cast:
                loss = loss_of(model(tokens), tokens)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - begin)
        if step + 1 == given.window:
            peak_after_window = torch.cuda.max_memory_allocated() if on_gpu else 0
    figures = {
        "rank": rank,
        "step_times_s": times_s,
        "peak_after_window_bytes": peak_after_window,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0,
    }
    Path(f"{given.out}.{rank}.json").write_text(json.dumps(figures), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
