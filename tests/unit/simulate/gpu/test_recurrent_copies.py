"""What cuDNN's recurrent layers copy and fill with zeros, beside their results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
STEPS, BATCH, INPUTS, HIDDEN = 64, 128, 256, 256
DATA_BYTES = STEPS * BATCH * INPUTS * 4
OUTPUT_BYTES = STEPS * BATCH * HIDDEN * 4


def test_data_in_another_order_than_time_first_are_copied() -> None:
    assert forward_peak_bytes("batch first, permuted") == forward_peak_bytes("time first") + DATA_BYTES
    assert forward_peak_bytes("batch first") == forward_peak_bytes("time first") + DATA_BYTES


def test_data_that_are_time_first_in_memory_are_not_copied() -> None:
    """As one sequence is, with the batch first or second."""
    assert forward_peak_bytes("time first, permuted") == forward_peak_bytes("time first")
    assert forward_peak_bytes("batch first", batch=1) == forward_peak_bytes("time first", batch=1)


def test_an_output_without_a_gradient_gets_zeros() -> None:
    """Otherwise it is the last state that gets zeros."""
    more_bytes = backward_peak_bytes(of_state=True) - backward_peak_bytes(of_state=False)
    assert more_bytes == OUTPUT_BYTES - BATCH * HIDDEN * 4


def test_layers_without_biases_keep_a_copy_of_their_weights() -> None:
    """With room for biases, because cuDNN has them in any case. The allocator does not split off up to 1 MiB.

    Source: bench/estimate/recurrent_buffers.py.
    """
    weights_bytes = (3 * HIDDEN * (INPUTS + HIDDEN) + 2 * 3 * HIDDEN) * 4
    copied_bytes = kept_bytes(bias=False) - kept_bytes(bias=True)
    assert weights_bytes <= copied_bytes <= weights_bytes + (1 << 20)


@contextmanager
def new_gpu() -> Iterator[None]:
    """Simulate a GPU on which nothing was allocated, so that its peak is the one of what follows."""
    with in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), lambda said: None):
        yield


def forward_peak_bytes(order: str, batch: int = BATCH) -> int:
    """Return the peak of a forward of data whose memory has an order, and are given permuted or as they are."""
    batch_in_memory, permuted = order.startswith("batch"), order.endswith("permuted")
    sizes = (batch, STEPS) if batch_in_memory else (STEPS, batch)
    with new_gpu(), torch.no_grad():
        data = torch.randn(*sizes, INPUTS, device="cuda")
        layer = nn.LSTM(INPUTS, HIDDEN, batch_first=batch_in_memory != permuted).cuda()
        layer(data.transpose(0, 1) if permuted else data)
        return torch.cuda.max_memory_allocated()


def backward_peak_bytes(of_state: bool) -> int:
    """Return the peak of a training of the output or of the last state, which is in its backward."""
    with new_gpu():
        layer = nn.GRU(INPUTS, HIDDEN).cuda()
        output, last = layer(torch.randn(STEPS, BATCH, INPUTS, device="cuda"))
        gradients = torch.ones_like(output), torch.ones_like(last)
        before_bytes = torch.cuda.max_memory_allocated()
        (last if of_state else output).backward(gradients[of_state])
        assert torch.cuda.max_memory_allocated() > before_bytes
        return torch.cuda.max_memory_allocated()


def kept_bytes(*, bias: bool) -> int:
    """Return what a forward leaves allocated for backward."""
    with new_gpu():
        data = torch.randn(STEPS, BATCH, INPUTS, device="cuda")
        layer = nn.GRU(INPUTS, HIDDEN, bias=bias).cuda()
        before_bytes = torch.cuda.memory_allocated()
        output, _ = layer(data)
        assert output.requires_grad
        return torch.cuda.memory_allocated() - before_bytes
