"""CUDA graphs on a simulated GPU: what is captured has memory of its own."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from simulated_gpu import SAID
from torch import nn

from gpuledger.simulate.estimate.fit import GUESSED, kind_of
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
MIB = 1 << 20


def captured(data: torch.Tensor, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        assert torch.cuda.is_current_stream_capturing()
        result = (data * 2 + 1).sqrt()
    assert not torch.cuda.is_current_stream_capturing()
    return graph, result


def test_what_a_graph_frees_serves_the_same_pool_only(device: SimulatedDevice) -> None:
    data = torch.ones(8 * MIB, device="cuda")
    graph, result = captured(data)
    assert device.counters.allocated_bytes == 64 * MIB
    assert device.counters.reserved_bytes == 96 * MIB  # a result that the graph has freed is kept for replays
    other = data + 1
    assert device.counters.reserved_bytes == 128 * MIB
    torch.cuda.empty_cache()
    assert device.counters.reserved_bytes == 128 * MIB
    again = captured(data, graph.pool())
    assert device.counters.reserved_bytes == 160 * MIB  # one more: the other one is free in the pool
    assert other.shape == result.shape == again[1].shape
    assert any("a CUDA graph is captured" in sentence for sentence in SAID)
    assert kind_of(device.operators) == GUESSED  # the interval is wider


def test_replays_need_no_memory_and_a_graph_that_is_gone_keeps_none(device: SimulatedDevice) -> None:
    data = torch.ones(8 * MIB, device="cuda")
    graph, result = captured(data)
    before = device.counters.alloc_count
    for _ in range(3):
        graph.replay()
    assert device.counters.alloc_count == before
    del graph, result
    torch.cuda.empty_cache()
    assert device.counters.reserved_bytes == 32 * MIB


def test_functions_with_graphs_are_simulated(device: SimulatedDevice) -> None:
    layer = nn.Linear(64, 64, device="cuda")
    data = torch.ones(4, 64, device="cuda", requires_grad=True)
    fast: Any = torch.cuda.make_graphed_callables(layer, (data,))
    fast(torch.ones(4, 64, device="cuda", requires_grad=True)).sum().backward()
    assert layer.weight.grad is not None
    assert device.allocator.private
