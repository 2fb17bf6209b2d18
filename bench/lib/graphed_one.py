"""A short program that captures CUDA graphs in one way, and prints the allocator's own figures. It knows no recorder.

Usage: python bench/lib/graphed_one.py hand
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, ROWS, STEPS = 1024, 4096, 14


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return x + self.down(self.act(self.up(x)))  # type: ignore[no-any-return]


def model() -> nn.Module:
    """Return a model of three blocks on the GPU."""
    return nn.Sequential(*(Block() for _ in range(3))).cuda()


def on_side_stream(work: Callable[[], Any]) -> None:
    """Run work once on another stream, as before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)


def infer(*, pool: Any = None, forked: bool = False) -> list[Any]:
    """Capture a forward pass, and replay it. ``forked`` runs its last block on a second stream."""
    net, x, side = model().eval(), torch.randn(ROWS, WIDTH, device="cuda"), torch.cuda.Stream()

    def work() -> Tensor:
        if not forked:
            return net(x)  # type: ignore[no-any-return]
        first = net[0](x)  # type: ignore[index]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second = net[1](first)  # type: ignore[index]
        third = net[2](first)  # type: ignore[index]
        torch.cuda.current_stream().wait_stream(side)
        return second + third  # type: ignore[no-any-return]

    with torch.no_grad():
        on_side_stream(work)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            out = work()
        for _ in range(STEPS):
            net(x)  # a call is a step
            graph.replay()
    return [net, x, graph, out]


def train(*, compiled: str | None = None, callables: bool = False) -> list[Any]:
    """Train with graphed callables, or with a compiled model."""
    net: Any = model()
    if callables:
        net = torch.cuda.make_graphed_callables(net, (torch.randn(ROWS, WIDTH, device="cuda"),))
    if compiled:
        net.compile(mode=compiled)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(STEPS):
        net(torch.randn(ROWS, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [net, optimizer]


def whole_step(*, compiled: bool) -> list[Any]:
    """Capture a whole training step and replay it."""
    net = model()
    if compiled:
        net.compile()
    optimizer = torch.optim.Adam(net.parameters(), capturable=True)
    x = torch.randn(ROWS, WIDTH, device="cuda")

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = net(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(3):
        on_side_stream(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(STEPS):
        graph.replay()
    return [net, optimizer, x, graph, loss]


KINDS: dict[str, Callable[[], list[Any]]] = {
    "hand": infer,
    "handle": lambda: infer(pool=torch.cuda.graph_pool_handle()),
    "forked": lambda: infer(forked=True),
    "callables": lambda: train(callables=True),
    "trees": lambda: train(compiled="reduce-overhead"),
    "whole": lambda: whole_step(compiled=False),
    "whole_compiled": lambda: whole_step(compiled=True),
}


def main() -> None:
    """Run one kind and print one line of JSON: the peak, and the bytes of each pool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    held = KINDS[parser.parse_args().kind]()
    torch.cuda.synchronize()
    pools: Counter[str] = Counter()
    for segment in torch.cuda.memory_snapshot():
        if tuple(segment["segment_pool_id"]) != (0, 0):
            pools[str(segment["segment_pool_id"][0] or -segment["segment_pool_id"][1])] += segment["total_size"]
    print(json.dumps({"peak_bytes": torch.cuda.max_memory_allocated(), "pools": pools}))
    held.clear()


if __name__ == "__main__":
    main()
