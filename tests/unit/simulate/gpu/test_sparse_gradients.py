"""Sparse tensors on the simulated GPU have the memory of their indices and values, which torch's fake ones do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
ROWS, WIDTH, COUNT = 4096, 64, 512
VALUES = COUNT * WIDTH * 4


@pytest.fixture
def used() -> Iterator[list[int]]:
    """Yield inside a simulated GPU."""
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), lambda _: None):
        yield []


def train(layer: nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return the gradient of a layer's weight, and the bytes that are kept after backward, besides those before it."""
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    before = torch.cuda.memory_allocated()
    layer(*inputs).pow(2).sum().backward()
    assert weight.grad is not None
    return weight.grad, torch.cuda.memory_allocated() - before


@pytest.mark.usefixtures("used")
def test_the_gradient_of_an_embedding_has_a_row_for_each_index() -> None:
    layer = nn.Embedding(ROWS, WIDTH, sparse=True, device="cuda")
    gradient, kept_bytes = train(layer, torch.arange(COUNT, device="cuda") % 100)
    assert (gradient.device.type, gradient._nnz(), kept_bytes) == ("cuda", COUNT, VALUES)
    assert gradient.coalesce()._values().shape == (100, WIDTH), "the indices are known, and some are equal"
    copied = gradient.clone()
    assert torch.cuda.memory_allocated() >= 2 * VALUES + ROWS * WIDTH * 4
    assert copied._nnz() == COUNT


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_the_gradient_of_an_embedding_bag_does_too(mode: str) -> None:
    layer = nn.EmbeddingBag(ROWS, WIDTH, mode=mode, sparse=True, device="cuda")
    bags = torch.arange(0, COUNT, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradient, kept_bytes = train(layer, torch.randint(ROWS, (COUNT,), device="cuda"), bags)
    assert gradient._nnz() == COUNT
    assert VALUES <= kept_bytes < VALUES + 4 * COUNT * 8
    peak = torch.cuda.max_memory_allocated() - before
    assert (peak > 2 * VALUES) is (mode == "mean"), "the mean is divided in a second tensor"


@pytest.mark.usefixtures("used")
def test_the_sparse_optimizer_needs_memory_only_for_the_rows_of_the_gradient() -> None:
    layer = nn.Embedding(ROWS, WIDTH, sparse=True, device="cuda")
    gradient, _ = train(layer, torch.arange(COUNT, device="cuda"))
    optimizer = torch.optim.SparseAdam(list(layer.parameters()))
    optimizer.step()
    state_bytes = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    assert torch.cuda.memory_allocated() == state_bytes
    assert 3 * VALUES <= torch.cuda.max_memory_allocated() - state_bytes <= 8 * VALUES
    assert layer.weight.detach().sparse_mask(gradient)._values().shape == (COUNT, WIDTH)


@pytest.mark.usefixtures("used")
def test_a_table_that_is_read_twice_has_the_rows_of_both_and_is_scaled() -> None:
    layer = nn.Embedding(ROWS, WIDTH, sparse=True, device="cuda")
    ids = torch.arange(COUNT, device="cuda")
    (layer(ids).pow(2).sum() + layer(ids[:100] + 5).pow(2).sum()).backward()
    gradient = layer.weight.grad
    assert gradient is not None
    assert gradient._nnz() == COUNT + 100
    assert gradient.coalesce()._nnz() == COUNT, "the rows of the second are among those of the first"
    before = torch.cuda.memory_allocated()
    half, third = gradient * 0.5, gradient / 3
    assert torch.cuda.memory_allocated() - before >= 2 * (COUNT + 100) * WIDTH * 4
    half.add_(third)
    assert half._nnz() == 2 * (COUNT + 100)
