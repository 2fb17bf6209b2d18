"""Nested tensors with jagged layout have the memory of their values."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch.nn import functional as F

from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
LENGTHS, WIDTH, HEADS = (100, 28, 256), 64, 4
TOKENS = sum(LENGTHS)
SQUARES = 2 * TOKENS * WIDTH * 4
"""Bytes of two tensors with a row for each token."""


def attend(nested: Any) -> Any:
    heads = nested.unflatten(-1, [HEADS, WIDTH // HEADS]).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


def test_nested_tensors_are_made_moved_and_read(device: SimulatedDevice) -> None:
    parts = [torch.randn(length, WIDTH) for length in LENGTHS]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda")
    assert (nested.device, nested.is_cuda) == (torch.device("cuda", 0), True)
    assert device.counters.allocated_bytes >= TOKENS * WIDTH * 4
    assert [tuple(part.shape) for part in nested.unbind()] == [(length, WIDTH) for length in LENGTHS]
    moved = torch.nested.nested_tensor(parts, layout=torch.jagged).to("cuda")
    assert moved.is_cuda
    assert moved.cpu().device.type == moved.bfloat16().cpu().values().device.type == "cpu"
    offsets = torch.tensor([0, 100, 128, 384]).cuda()
    again = torch.nested.nested_tensor_from_jagged(torch.cat(parts).cuda(), offsets)
    assert (again * 2 + again).values().shape == (TOKENS, WIDTH)
    assert torch.nested.to_padded_tensor(nested, 0.0).shape == (3, 256, WIDTH)
    assert torch.nested.to_padded_tensor(again, 0.0).shape == (3, TOKENS, WIDTH)  # torch does not read the offsets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_nested_tensors_has_no_matrix_of_scores(device: SimulatedDevice, dtype: torch.dtype) -> None:
    """Nor a copy for each head: efficient attention in float32, flash attention in bfloat16."""
    parts = [torch.randn(length, WIDTH, dtype=dtype) for length in LENGTHS]
    nested: Any = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda", requires_grad=True)
    before = device.counters.allocated_bytes
    attended = attend(nested)
    size_bytes = TOKENS * WIDTH * dtype.itemsize
    kept_bytes = device.counters.allocated_bytes - before - size_bytes
    assert 0 < kept_bytes < 2 * HEADS * len(LENGTHS) * max(LENGTHS) * 4  # the sums for the backward pass
    attended.values().sum().backward()
    assert nested.grad.is_cuda
    assert nested.grad.values().shape == (TOKENS, WIDTH)
    names = set(device.operators)
    assert any(("flash" if dtype is torch.bfloat16 else "efficient") in name for name in names)


def test_a_block_trains_under_autocast_and_leaves_nothing(device: SimulatedDevice) -> None:
    layer = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)).cuda()
    nested: Any = torch.nested.nested_tensor(
        [torch.randn(length, WIDTH) for length in LENGTHS], layout=torch.jagged, device="cuda"
    )
    before = sum(size_bytes for size_bytes, _ in device.live_blocks().values())
    with torch.autocast("cuda", torch.bfloat16):
        made = attend(layer(nested))
        assert made.dtype == torch.bfloat16
    assert made.values().float().sum().item() == 0.5
    made.values().float().sum().backward()
    del made
    gradients_bytes = sum(one.numel() * 4 for one in layer.parameters())
    assert sum(size_bytes for size_bytes, _ in device.live_blocks().values()) - before == gradients_bytes
