"""Sparse tensors on the simulated GPU have the memory of their indices and values, which torch's fake ones do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch._subclasses import fake_tensor

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


@pytest.mark.usefixtures("used")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", [torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD])
def test_no_real_tensor_of_the_size_of_a_table_is_made(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch runs operators without a fake kernel on real zeros. For tables of gigabytes, that takes seconds each."""
    filled: list[str] = []
    plain = fake_tensor.run_fallback_kernel

    def run(mode: Any, func: Any, given: Any, *others: Any) -> Any:
        sizes = [one.numel() for one in given if isinstance(one, torch.Tensor) and one.layout is torch.strided]
        filled.extend([str(func)] * (ROWS * WIDTH in sizes))
        return plain(mode, func, given, *others)

    monkeypatch.setattr(fake_tensor, "run_fallback_kernel", run)
    layer = nn.Embedding(ROWS, WIDTH, sparse=True, device="cuda")
    optimizer = kind(list(layer.parameters()), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        train(layer, torch.arange(COUNT, device="cuda"))
        optimizer.step()
    assert filled == []


@pytest.mark.usefixtures("used")
def test_a_table_and_a_sparse_tensor_have_a_sum_of_the_tables_size() -> None:
    layer = nn.Embedding(ROWS, WIDTH, sparse=True, device="cuda")
    gradient, _ = train(layer, torch.arange(COUNT, device="cuda"))
    table = torch.zeros(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    entries = table.sparse_mask(gradient.coalesce())
    assert (entries.dtype, entries._values().dtype, entries._nnz()) == (torch.bfloat16, torch.bfloat16, COUNT)
    before = torch.cuda.memory_allocated()
    total = table + gradient
    assert (total.shape, total.dtype, total.layout) == (table.shape, torch.float32, torch.strided)
    assert torch.cuda.memory_allocated() - before == ROWS * WIDTH * 4
    assert layer.weight.detach().add_(gradient).untyped_storage()._cdata == layer.weight.untyped_storage()._cdata
