"""Fused kernels on the simulated GPU: RMSNorm keeps the data and one number per row, attention keeps no scores."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
from present import present
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.model.journal.journal import Action
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
ROWS, WIDTH = 1024, 512
SIZE = ROWS * WIDTH * 4


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm"), reason="this torch has no fused kernel")
def test_the_fused_kernel_keeps_one_number_per_row() -> None:
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    with in_place(device, lambda _: None):
        norm = nn.RMSNorm(WIDTH, device="cuda")
        data = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        made = norm(data)
        assert torch.cuda.memory_allocated() - before == SIZE + ROWS * 4
        made.sum().backward()
        assert data.grad is not None
        assert norm.weight.grad is not None
        assert (data.grad.shape, norm.weight.grad.shape) == ((ROWS, WIDTH), (WIDTH,))


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_weights_of_another_dtype_use_plain_operators() -> None:
    """CUDA has no fused kernel for them, so more is kept for backward."""
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    with in_place(device, lambda _: None):
        norm = nn.RMSNorm(WIDTH, device="cuda", dtype=torch.bfloat16)
        data = torch.randn(ROWS, WIDTH, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        made = norm(data)
        assert torch.cuda.memory_allocated() - before > SIZE + ROWS * 4
        assert made.shape == data.shape


def test_a_resized_storage_gets_and_loses_its_memory() -> None:
    """FSDP frees and gathers weights so, without an operator."""
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    with in_place(device, lambda _: None):
        data = torch.empty(SIZE // 4, device="cuda")
        storage = data.untyped_storage()
        storage.resize_(0)
        assert torch.cuda.memory_allocated() == 0
        storage.resize_(SIZE)
        assert torch.cuda.memory_allocated() == SIZE
        storage.resize_(2 * SIZE)
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (2 * SIZE, 3 * SIZE)
        on_cpu = torch.empty(8).untyped_storage()
        on_cpu.resize_(0)
        assert torch.cuda.memory_allocated() == 2 * SIZE


def test_the_index_of_the_device_follows_set_device() -> None:
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    with in_place(device, lambda _: None):
        torch.cuda.set_device(3)
        assert torch.empty(4, device="cuda").device == torch.device("cuda", 3)
        assert torch.cuda.current_device() == 3
        torch.cuda.set_device(torch.device("cuda:1"))
        assert torch.empty(4).cuda().get_device() == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_flex_attention_has_scores_in_memory_only_where_it_is_not_compiled(compiled: bool) -> None:
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    rows_bytes, width, length = 2 * 4 * 128 * 4, 32, 128
    with in_place(device, lambda _: None):
        attention = torch.compile(flex_attention) if compiled else flex_attention
        data = torch.randn(2, 4, length, width, device="cuda", requires_grad=True)
        bias = torch.zeros(4, device="cuda", requires_grad=True)
        mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, length, length, device="cuda")
        data @ data.mT  # takes cuBLAS's workspace
        first, before = len(device.events), torch.cuda.memory_allocated()
        made = attention(data, data, data, lambda score, _b, h, _q, _k: score + bias[h], mask)
        assert torch.cuda.memory_allocated() - before == rows_bytes * width + rows_bytes
        made.sum().backward()
        assert present(data.grad).shape == data.shape
        assert present(bias.grad).shape == bias.shape
        sizes = [event[2] for event in device.events[first:] if event[0] == Action.ALLOC]
    assert (rows_bytes * length in sizes) != compiled


@pytest.mark.parametrize(
    ("kernels", "dtype", "keeps_scores"),
    [
        ([SDPBackend.MATH], torch.float32, True),
        ([SDPBackend.MATH], torch.float16, True),
        ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], torch.float32, False),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], torch.float32, True),  # flash attention has no float32
        ([SDPBackend.CUDNN_ATTENTION], torch.float16, False),
    ],
)
def test_attention_uses_only_the_kernels_that_the_program_has_switched_on(
    kernels: list[SDPBackend], dtype: torch.dtype, keeps_scores: bool
) -> None:
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    with in_place(device, lambda _: None), sdpa_kernel(kernels):
        data = torch.randn(2, 4, 512, 16, device="cuda", dtype=dtype, requires_grad=True)
        before = torch.cuda.memory_allocated()
        made = nn.functional.scaled_dot_product_attention(data, data, data)
        scores_bytes = 2 * 4 * 512 * 512 * 4
        assert (torch.cuda.memory_allocated() - before > scores_bytes) is keeps_scores
        assert made.shape == data.shape


def test_grouped_queries_with_a_mask_use_cudnn_on_recent_gpus() -> None:
    """Neither flash nor memory-efficient attention takes both. The scores would be 48 MiB."""
    peaks = {}
    for name in ("h200", "a100-80gb"):
        device = SimulatedDevice(find_card(name), CachingAllocator())
        with in_place(device, lambda _: None):
            query = torch.ones(4, 8, 512, 64, device="cuda", dtype=torch.bfloat16)
            key = torch.ones(4, 2, 512, 64, device="cuda", dtype=torch.bfloat16)
            mask = torch.ones(512, 512, dtype=torch.bool, device="cuda")
            nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask, enable_gqa=True)
            peaks[name] = device.counters.peak_allocated_bytes
    assert peaks["h200"] < 10 << 20 < 32 << 20 < peaks["a100-80gb"]


@pytest.mark.parametrize("key_heads", [2, 8])
def test_cudnns_attention_keeps_a_boolean_mask_in_the_queries_dtype(key_heads: int) -> None:
    """As recorded on an H200 with grouped queries: result, rows and mask are kept, and backward has one workspace."""
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    with in_place(device, lambda _: None):
        query = torch.ones(4, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        key = torch.ones(4, key_heads, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        mask = torch.ones(4, 1, 512, 512, dtype=torch.bool, device="cuda")
        before = torch.cuda.memory_allocated()
        made = nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=mask, enable_gqa=True)
        rows, seeds_bytes = 4 * 8 * 512, 2 * 512
        assert torch.cuda.memory_allocated() - before == made.nbytes + rows * 4 + mask.numel() * 2 + seeds_bytes
        first = len(device.events)
        made.sum().backward()
        sizes = [event[2] for event in device.events[first:] if event[0] == Action.ALLOC]
    whole_bytes = 2 * query.nbytes if key_heads != 8 else 0
    assert sizes.count(rows * 4 * 65 + 256 + whole_bytes) == 1


def test_the_program_can_have_flash_attention_where_torch_prefers_cudnn() -> None:
    """FlashAttention pads 80 elements to 96."""
    device = SimulatedDevice(find_card("h200"), CachingAllocator())
    with in_place(device, lambda _: None), sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        data = torch.ones(4, 8, 512, 80, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        nn.functional.scaled_dot_product_attention(data, data, data).sum().backward()
        sizes = {event[2] for event in device.events if event[0] == Action.ALLOC}
    assert 4 * 8 * 512 * 4 * 97 + 256 in sizes
    assert 4 * 8 * 512 * 4 * 81 + 256 not in sizes
