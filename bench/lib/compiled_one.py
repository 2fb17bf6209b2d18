"""A training script for one model: eager, compiled, or captured in a CUDA graph. It knows nothing of a recorder.

Usage: python bench/lib/compiled_one.py gpt2 --mode compiled --steps 20
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from models import MODELS, Batch, Workload
from torch import Tensor, nn

MODES = ("eager", "compiled", "autotuned", "captured", "graph")
"""``captured`` is ``mode="reduce-overhead"``; ``graph`` captures the whole step by hand."""


class Experts(nn.Module):
    """A mixture of experts without branches: every expert runs, and a router weights their outputs."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(experts)
        )

    def forward(self, states: Tensor) -> Tensor:
        """Return the weighted outputs of the two best experts of each token."""
        weights = self.router(states).softmax(-1)
        kept = weights * (weights >= weights.topk(2, -1).values[..., -1:])
        found = torch.zeros_like(states)
        for number, expert in enumerate(self.experts):
            found = found + kept[..., number : number + 1] * expert(states)
        return found


class Mixture(nn.Module):
    """A small language model with attention and experts."""

    def __init__(self, vocabulary: int, width: int, layers: int, experts: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.blocks = nn.ModuleList(Experts(width, experts) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, [batch, length, vocabulary]."""
        states = self.embedding(tokens)
        for attention, norm, block in zip(self.attention, self.norms, self.blocks, strict=True):
            states = states + attention(states, states, states, need_weights=False)[0]
            states = states + block(norm(states))
        return self.head(states)  # type: ignore[no-any-return]


def _mixture(device: str, small: bool) -> Workload:
    vocabulary, width, layers, length = (500, 64, 2, 32) if small else (16_000, 512, 4, 512)
    model = Mixture(vocabulary, width, layers, 4 if small else 8).to(device)
    optimizer, criterion = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()

    def make_batch() -> Batch:
        return (torch.randint(vocabulary, (2 if small else 8, length)).to(device),)

    def train(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        criterion(model(batch[0]).flatten(0, 1), batch[0].flatten()).backward()
        optimizer.step()

    return Workload((model,), (optimizer,), make_batch, train)


def build(name: str, device: str, *, small: bool) -> Workload:
    """Return one training."""
    return _mixture(device, small) if name == "moe" else MODELS[name].build(device, small=small)


def _stepper(workload: Workload, mode: str) -> Callable[[], None]:
    """Return a function that trains one step."""
    if mode in ("compiled", "autotuned", "captured"):
        how = {"compiled": None, "autotuned": "max-autotune-no-cudagraphs", "captured": "reduce-overhead"}[mode]
        for model in workload.models:
            model.compile(mode=how)
    if mode != "graph":
        return workload.stepper(2)
    for optimizer in workload.optimizers:
        for group in optimizer.param_groups:
            if "capturable" in group:
                group["capturable"] = True
    batch = workload.make_batch()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            workload.train(batch)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        workload.train(batch)
    return graph.replay


def main() -> None:
    """Train some steps and print one line of JSON: peak bytes and the time of every step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--mode", choices=MODES, default="eager")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    started_s = time.perf_counter()
    workload = build(arguments.model, arguments.device, small=arguments.small)
    step = _stepper(workload, arguments.mode)
    on_card = arguments.device.startswith("cuda")
    times_s, peaks = [], []
    for _ in range(arguments.steps):
        before_s = time.perf_counter()
        step()
        if on_card:
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - before_s)
        peaks.append(torch.cuda.max_memory_allocated() if on_card else None)
    print(
        json.dumps(
            {
                "step_times_s": times_s,
                "peaks_bytes": peaks,
                "compiled_graphs": torch._dynamo.utils.counters["stats"].get("unique_graphs", 0),
                "seconds": time.perf_counter() - started_s,
            }
        )
    )


if __name__ == "__main__":
    main()
