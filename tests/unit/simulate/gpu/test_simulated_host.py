"""Copies between a simulated GPU and tensors of the CPU that have data."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from gpuledger.model.journal.journal import Action
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch


def _computed(*shape: int) -> torch.Tensor:
    """Return a tensor on the GPU whose values are not known."""
    return nn.Linear(shape[-1], shape[-1]).cuda()(torch.randn(*shape, device="cuda")).detach()


def _allocated_bytes(device: SimulatedDevice, first: int) -> list[int]:
    return [event[2] for event in device.events[first:] if event[0] == Action.ALLOC]


def test_a_copy_to_the_host_takes_none_of_the_gpu(device: SimulatedDevice) -> None:
    made, host = _computed(64, 64), torch.empty(64, 64, pin_memory=True)
    first = len(device.events)
    assert host.copy_(made) is host
    host[:8] = made[:8]
    assert _allocated_bytes(device, first) == []


@pytest.mark.parametrize("into", [torch.empty(64, 64), torch.empty(128, 64)[::2]])
def test_a_copy_of_columns_to_the_host_is_made_contiguous_on_the_gpu(
    device: SimulatedDevice, into: torch.Tensor
) -> None:
    made = _computed(64, 128)[:, ::2]
    first = len(device.events)
    into.copy_(made)
    made.cpu()
    assert _allocated_bytes(device, first) == [64 * 64 * 4] * 2


def test_a_copy_into_memory_of_the_host_that_has_no_data_takes_none_of_the_gpu(device: SimulatedDevice) -> None:
    """What comes from the GPU, and what is made like that, has no data."""
    weight, gradient = _computed(64, 64), _computed(64, 64)
    host = weight.cpu().pin_memory()
    kept = torch.empty_like(host).pin_memory()
    first = len(device.events)
    assert kept.copy_(gradient, non_blocking=True) is kept
    host[:8] = gradient[:8]
    assert _allocated_bytes(device, first) == []
    kept.copy_(gradient.t())
    assert _allocated_bytes(device, first) == [64 * 64 * 4]
    assert (kept.is_cuda, kept.device.type) == (False, "cpu")
    weight.copy_(kept)
    assert weight.is_cuda


def test_unknown_values_stay_unknown_on_the_host_and_back(device: SimulatedDevice) -> None:
    host = torch.full((4,), float("nan"))
    host.copy_(_computed(4))
    assert not host.isnan().any()
    assert not host.to("cuda").isnan().any()
    assert host.to("cuda").sum().item() == 0.5  # a placeholder
    counts = torch.empty(4, dtype=torch.int64)
    counts.copy_(_computed(4).long())
    assert counts.tolist() == [0, 0, 0, 0]
    kept = torch.ones(4)
    kept += _computed(4).cpu()
    assert kept.tolist() == [1, 1, 1, 1]
    assert 0.49 < kept.cuda().sum().item() < 0.5


def test_known_values_arrive_on_the_host(device: SimulatedDevice) -> None:
    host = torch.zeros(6, dtype=torch.int64)
    host[2:5].copy_(torch.arange(3).cuda() + 1)
    assert host.tolist() == [0, 0, 1, 2, 3, 0]
    assert host.cuda().sum().item() == 6


def test_a_backward_from_the_host_has_no_nan_to_find(device: SimulatedDevice) -> None:
    """The saved tensors come from new memory of the host, which can have any content."""
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).cuda()
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = model(torch.randn(4, 8, device="cuda")).pow(2).mean()
    with torch.autograd.set_detect_anomaly(True):
        loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
