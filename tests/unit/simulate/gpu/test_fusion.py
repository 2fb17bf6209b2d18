"""Compiled code on a simulated GPU: which of its tensors have memory."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch.nn import functional as F

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu import compiling
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch
MIB = 1 << 20
ROWS, CLASSES = 2048, 8192


class Peak:
    """The peak and the rest of allocated memory beside what was there before, in MiB."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device

    def __enter__(self) -> Peak:
        self.device.counters.peak_allocated_bytes = self.before = self.device.counters.allocated_bytes
        return self

    def __exit__(self, *error: object) -> None:
        self.peak = (self.device.counters.peak_allocated_bytes - self.before) / MIB
        self.held = (self.device.counters.allocated_bytes - self.before) / MIB


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logits = logits.float()
    rows = torch.logsumexp(logits, -1)
    picked = logits.gather(-1, target[:, None]).squeeze(-1)
    return (rows - picked).mean() + 1e-4 * rows.square().mean()


def trained(device: SimulatedDevice, loss: Any) -> Peak:
    logits = torch.randn(ROWS, CLASSES, device="cuda", dtype=torch.bfloat16).requires_grad_()
    target = torch.zeros(ROWS, dtype=torch.long, device="cuda")
    with Peak(device) as found:
        loss(logits, target).backward()
    assert logits.grad is not None
    return found


def test_a_compiled_loss_needs_the_gradient_of_the_logits_only(device: SimulatedDevice) -> None:
    """32 MiB of logits: the eager loss has float32 copies of them, which the compiled one computes in registers."""

    def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), target)

    assert trained(device, cross_entropy).peak > 128
    compiled = trained(device, torch.compile(cross_entropy))
    assert 32 <= compiled.peak < 34
    assert compiled.held == 32


def test_a_gradient_that_is_added_at_indices_is_written(device: SimulatedDevice) -> None:
    """That of ``gather`` in float32: kernels add to memory, so it is there beside the gradient of the logits."""
    assert trained(device, loss_of).peak > 160
    assert 96 <= trained(device, torch.compile(loss_of)).peak < 98


def test_pointwise_results_have_no_memory_until_the_function_returns_them(device: SimulatedDevice) -> None:
    data = torch.ones(MIB, device="cuda")

    @torch.compile
    def scaled(data: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            data = (data * 2 + 1).sigmoid()
        return data

    with Peak(device) as found:
        result = scaled(data)
    assert (found.peak, found.held) == (4, 4)
    assert result.shape == data.shape


def test_a_product_reads_and_writes_memory(device: SimulatedDevice) -> None:
    data, weight = torch.ones(1024, 1024, device="cuda"), torch.ones(1024, 1024, device="cuda")
    torch.mm(data, weight)  # the workspace of cuBLAS
    with Peak(device) as found:
        result = torch.compile(lambda: torch.mm((data + 1).relu(), weight) * 2)()
    assert (found.peak, found.held) == (8, 4)  # the first argument and the product, then the product and the result
    assert result.shape == data.shape


def test_what_backward_computes_again_keeps_its_sources(device: SimulatedDevice) -> None:
    layer, data = nn.Linear(1024, 1024, bias=False, device="cuda"), torch.ones(1024, 1024, device="cuda")
    layer(data)
    with Peak(device) as found:
        result = torch.compile(lambda: layer(data).sin().exp().sum())()
    assert 4 <= found.held < 4.01  # the product; eager code keeps the sine's and the exponential's results, too
    with Peak(device) as backward:
        result.backward()
    assert layer.weight.grad is not None
    assert backward.held < 33  # with the workspace of backward


def test_a_tensor_of_many_others_is_written(device: SimulatedDevice) -> None:
    parts = [torch.ones(MIB, device="cuda") for _ in range(12)]

    @torch.compile
    def summed() -> torch.Tensor:
        found = parts[0]
        for part in parts[1:]:
            found = found + part
        return found.mean()

    with Peak(device) as found:
        summed()
    assert 4 <= found.peak <= 8.01


def test_a_norm_of_several_tensors_keeps_what_it_reads(device: SimulatedDevice) -> None:
    first, second = (torch.ones(1024, 1024, device="cuda").requires_grad_() for _ in range(2))
    with Peak(device) as found:
        result = torch.compile(lambda: F.layer_norm(first + second, (1024,)).sum())()
    assert 4 <= found.held < 4.1
    assert result.requires_grad


@pytest.mark.parametrize("uses", [False, True])
def test_a_result_that_is_not_used_gets_zeros_as_gradient(device: SimulatedDevice, uses: bool) -> None:
    data = torch.ones(MIB, device="cuda").requires_grad_()

    @torch.compile
    def both(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = data * 2
        return logits.sum(), logits

    loss, logits = both(data)
    if uses:
        loss = loss + logits[:1].sum()
    with Peak(device) as found:
        loss.backward()
    assert data.grad is not None
    assert 8 <= found.peak < 8.1
    assert 4 <= found.held < 4.1


def test_an_unused_module_of_compiled_code_is_freed(device: SimulatedDevice) -> None:
    with Peak(device) as found:
        model = torch.compile(nn.Linear(1024, 1024, bias=False, device="cuda"))
        assert torch.compiler.is_compiling() is False
        del model
    assert found.held == 0


@pytest.mark.parametrize("as_exported", [False, True])
def test_code_sees_that_it_is_compiled(as_exported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuledger.simulate.gpu.compiling.traced_as_exported", lambda: as_exported)
    made = SimulatedDevice(find_card("h200"), CachingAllocator())
    model = nn.ReLU()
    seen = []
    model.register_forward_pre_hook(
        lambda *_: seen.append((torch.compiler.is_compiling(), torch.compiler.is_exporting()))
    )
    data = torch.ones(4)
    with in_place(made, lambda _: None):
        model(data)
        torch.compile(model)
        model(data)
        assert "_compiled_call_impl" in vars(model)
        assert not torch.compiler.is_exporting()
    assert seen == [(False, False), (True, as_exported)]
    assert "_compiled_call_impl" not in vars(model)


def test_what_code_sees_of_an_export_is_what_this_torch_shows_it() -> None:
    """The compiler of some versions takes a function to be exported while it traces it."""

    def is_exported(data: torch.Tensor) -> torch.Tensor:
        return data + (1 if torch.compiler.is_exporting() else 0)

    compiled = torch.compile(is_exported, backend="eager")
    assert bool(compiled(torch.zeros(()))) is compiling.traced_as_exported()
