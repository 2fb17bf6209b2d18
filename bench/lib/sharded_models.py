"""A Llama-shaped model, divided among ranks in each of several ways, with its optimizer and its training step."""

# No annotations from __future__: DistributedDataParallel compares those of a communication hook with its classes.
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.nn.parallel import DistributedDataParallel

SIZES = {
    "tiny": (64, 4, 4, 176, 256, 2, 32),
    "small": (1024, 8, 16, 2752, 32000, 2, 512),
    "1b": (2048, 24, 16, 5504, 32000, 2, 1024),
    "7b": (4096, 32, 32, 11008, 32000, 1, 1024),
}
"""Width, layers, heads, inner width, words, batch size, sequence length."""
WAYS = (
    *("fsdp", "ddp", "tp", "pp", "fsdp_keep", "fsdp_bf16", "hsdp", "tp_fsdp", "zero", "fsdp1", "ddp_views"),
    *("fsdp_offload", "ddp_events"),
)
SMALLER = {"1b": {"fsdp_offload": "small"}, "7b": {"fsdp_offload": "small"}}
"""Sizes of ways that would take too long: with CPU offload, the optimizer's step runs on the CPU."""


class Keep(torch.autograd.Function):
    """Returns its input, and keeps a tensor of some bytes until its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size_bytes: int) -> Tensor:
        """Save a tensor for backward."""
        ctx.save_for_backward(torch.zeros(size_bytes, dtype=torch.uint8, device=x.device))
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient."""
        assert len(ctx.saved_tensors) == 1
        return gradient, None


class Block(nn.Module):
    """One layer of a Llama-shaped model, without rotary positions. ``extra_bytes`` is what it keeps for backward."""

    extra_bytes = 0

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        if self.extra_bytes:
            x = Keep.apply(x, self.extra_bytes)
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


@dataclass
class Job:
    """One training. ``step()`` runs forward and backward. ``events`` are recorded before this step's collectives."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], None]
    events: list[Any] = field(default_factory=list)


def build(way: str, size: str, device: torch.device, extra_bytes: int = 0) -> Job:
    """Return the training of one way. ``extra_bytes`` is an activation that the last layer keeps on this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    is_pipeline = way == "pp"
    with device:
        model = Model(size, rank, world) if is_pipeline else Model(size)
    if extra_bytes:
        list(model.layers.values())[-1].extra_bytes = extra_bytes
    words, batch, length = SIZES[size][4:]
    tokens = torch.randint(0, words, (batch * (world if is_pipeline else 1), length), device=device)
    divided = divide(model, way, device)
    optimizer = optimizer_of(divided, way)
    if is_pipeline:
        schedule = Schedule1F1B(PipelineStage(model, rank, world, device), n_microbatches=world, loss_fn=loss_of)
        inputs = [tokens] if rank == 0 else []
        targets = {"target": tokens} if rank == world - 1 else {}
        return Job(divided, optimizer, lambda: schedule.step(*inputs, **targets))
    cast = partial(torch.autocast, device.type, torch.bfloat16) if way != "fsdp_bf16" else nullcontext

    def step() -> None:
        with cast():
            loss = loss_of(divided(tokens), tokens)
        loss.backward()

    job = Job(divided, optimizer, step)
    if way == "ddp_events":
        divided.register_comm_hook(job.events, timed_all_reduce)
    return job


def divide(model: Model, way: str, device: torch.device) -> nn.Module:
    """Return the model, divided among the ranks."""
    world = dist.get_world_size()
    if way == "fsdp1":
        return FullyShardedDataParallel(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, use_orig_params=True
        )
    if way.startswith(("fsdp", "hsdp")):
        replicas = 2 if world > 2 else 1
        shape, names = ((replicas, world // replicas), ("replicate", "dp")) if way == "hsdp" else ((world,), ("dp",))
        return shard_fully(model, way, init_device_mesh(device.type, shape, mesh_dim_names=names))
    if way.startswith(("ddp", "zero")):
        options = {"bucket_cap_mb": 1024} if way == "ddp_events" else {}
        return DistributedDataParallel(model, gradient_as_bucket_view=way == "ddp_views", **options)
    if way == "tp":
        split_layers(model, init_device_mesh(device.type, (world,), mesh_dim_names=("tp",)))
    if way == "tp_fsdp":
        mesh = init_device_mesh(device.type, (max(1, world // 2), 2), mesh_dim_names=("dp", "tp"))
        split_layers(model, mesh["tp"])
        return shard_fully(model, way, mesh["dp"])
    return model


def shard_fully(model: Model, way: str, mesh: DeviceMesh) -> nn.Module:
    """Return the model after ``fully_shard`` of each layer and of the rest."""
    policy: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": way != "fsdp_keep"}
    if way == "fsdp_bf16":
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if way == "fsdp_offload":
        policy["offload_policy"] = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    for layer in model.layers.values():
        fully_shard(layer, **policy)
    return fully_shard(model, **policy)


def split_layers(model: Model, mesh: DeviceMesh) -> None:
    """Divide the matrices of each layer for tensor parallelism."""
    plan: dict[str, Any] = dict.fromkeys(("q", "k", "v", "gate", "up"), ColwiseParallel())
    plan |= dict.fromkeys(("o", "down"), RowwiseParallel())
    for layer in model.layers.values():
        parallelize_module(layer, mesh, plan)


def optimizer_of(model: nn.Module, way: str) -> torch.optim.Optimizer:
    """Return AdamW for the model. Tensors and DTensors of each mesh are in groups of their own, as foreach requires.

    The step on the CPU is fused: it reads each tensor once.
    """
    parameters = list(model.parameters())
    if way == "zero":
        return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, lr=1e-4, foreach=True)
    groups: dict[Any, list[nn.Parameter]] = {}
    for one in parameters:
        groups.setdefault(one.device_mesh if isinstance(one, DTensor) else None, []).append(one)
    kind = {"fused": True} if way == "fsdp_offload" else {"foreach": True}
    return torch.optim.AdamW([{"params": group} for group in groups.values()], lr=1e-4, **kind)


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Return the loss."""
    return nn.functional.cross_entropy(logits.flatten(0, -2).float(), target.flatten())


def timed_all_reduce(events: list[Any], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket's gradients over the ranks in the compute stream, after a CUDA event."""
    gradients = bucket.buffer().div_(dist.get_world_size())
    if gradients.is_cuda:
        events.append(record_event())
    dist.all_reduce(gradients)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


def record_event() -> Any:
    """Return a CUDA event with a time, recorded in the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
