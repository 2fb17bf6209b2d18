"""A layer of ``nn.TransformerEncoder`` outside of training needs the memory of PyTorch's operator for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch
from loop_programs import peak_of
from simulated_gpu import simulated_h200
from torch import nn

from gpuledger.model.journal.journal import Action
from gpuledger.simulate.encoder_layers import FastEncoderLayers, layer_forward
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches

pytestmark = pytest.mark.torch
BATCH, LENGTH, WIDTH = 4, 65, 256
DATA_BYTES = BATCH * LENGTH * WIDTH * 4


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    with simulated_h200() as made:
        patches = Patches()
        FastEncoderLayers(made).install(patches)
        yield made
        patches.undo()


def requests_of(device: SimulatedDevice, layer: nn.Module, **how: Any) -> list[float]:
    """Return the requests of a second call, in sizes of the data, without the small ones and the workspaces."""
    data = torch.ones(BATCH, LENGTH, WIDTH, device="cuda")
    layer(data, **how)
    first = len(device.events)
    layer(data, **how)
    requests = [event[2] for event in device.events[first:] if event[0] == Action.ALLOC]
    return [size / DATA_BYTES for size in requests if size >= DATA_BYTES]


def made(heads: int = 8, **how: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(WIDTH, heads, 4 * WIDTH, batch_first=True, **how).cuda()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_layer_requests_what_was_recorded_on_a_gpu(device: SimulatedDevice, mode: Any) -> None:
    """Projections, attention, their product, norm, two products and norm, on an H200 with torch 2.11."""
    with mode():
        assert requests_of(device, made().eval()) == [3, 1, 1, 1, 4, 1, 1]
        assert requests_of(device, made(norm_first=True, activation="gelu").eval()) == [1, 3, 1, 1, 1, 4, 1]


def test_heads_of_other_sizes_need_their_scores(device: SimulatedDevice) -> None:
    with torch.no_grad():
        found = requests_of(device, made(heads=64).eval())
    scores = 64 * LENGTH / WIDTH
    assert found == [3, 3, scores, scores, 1, 1, 1, 4, 1, 1]


def test_the_modules_are_called_where_pytorch_calls_them(device: SimulatedDevice) -> None:
    modules = [4, 4]  # the activation is an operator of its own
    mask = torch.zeros(LENGTH, LENGTH, dtype=torch.bool, device="cuda")
    with torch.no_grad():
        assert [size for size in requests_of(device, made(dropout=0.0)) if size == 4] == modules
        assert [size for size in requests_of(device, made().eval(), src_mask=mask) if size == 4] == modules
        assert [size for size in requests_of(device, made(heads=1).eval()) if size == 4] == modules
    assert [size for size in requests_of(device, made().eval()) if size == 4] == modules


SCRIPT = """
import torch
torch.backends.mha.set_fastpath_enabled({fast})
layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True).cuda().eval()
with torch.no_grad():
    for _ in range(3):
        layer(torch.ones(64, 256, 256, device="cuda"))
"""


def test_an_estimate_follows_the_operator_unless_the_script_turns_it_off(tmp_path: Path) -> None:
    fast, slow = (peak_of(tmp_path, SCRIPT.format(fast=fast)) for fast in (True, False))
    hidden_bytes, result_bytes = 64 * 256 * 1024 * 4, 64 * 256 * 256 * 4
    # Without the operator, the activation has a tensor. With it, the result of the second product is at the peak.
    assert slow - fast == pytest.approx(hidden_bytes - result_bytes, rel=0.02)


def test_everything_is_as_before_afterwards() -> None:
    before = (
        nn.TransformerEncoderLayer.forward,
        torch.overrides.has_torch_function,
        torch._transformer_encoder_layer_fwd,
    )
    with simulated_h200() as device:
        patches = Patches()
        FastEncoderLayers(device).install(patches)
        assert nn.TransformerEncoderLayer.forward is not before[0]
        patches.undo()
    after = nn.TransformerEncoderLayer.forward, torch.overrides.has_torch_function, torch._transformer_encoder_layer_fwd
    assert after == before


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_operators_are_those_of_pytorch(norm_first: bool, activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With values, they compute the same."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first, activation=activation).eval()
    data = torch.randn(2, 5, 32)
    calls: list[tuple[Any, ...]] = []
    plain = torch._transformer_encoder_layer_fwd

    def noting(*given: Any) -> torch.Tensor:
        calls.append(given)
        return plain(*given)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", noting)
    with torch.no_grad():
        expected = layer(data)
        assert torch.allclose(layer_forward(*calls[0]), expected, atol=2e-3 if activation == "gelu" else 1e-5)
