"""The saving that a recording predicts for autocast is that of the program under autocast on the simulated GPU."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
from torch import Tensor, nn

import gpuledger
from gpuledger.analyze.overview.peak_facts import PeakFacts
from gpuledger.analyze.overview.what_if import with_autocast

pytestmark = pytest.mark.torch
WIDTH = 256


class NewGELUActivation(nn.Module):
    """The activation of GPT-2 in transformers, which computes a power."""

    def forward(self, data: Tensor) -> Tensor:
        inner = math.sqrt(2.0 / math.pi) * (data + 0.044715 * torch.pow(data, 3.0))
        return 0.5 * data * (1.0 + torch.tanh(inner))


class Block(nn.Module):
    def __init__(self, activation: type[nn.Module]) -> None:
        super().__init__()
        self.norm, self.first = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.act, self.last = activation(), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, data: Tensor) -> Tensor:
        out: Tensor = data + self.last(self.act(self.first(self.norm(data))))
        return out


class Stack(nn.Module):
    def __init__(self, activation: type[nn.Module]) -> None:
        super().__init__()
        self.wte = nn.Embedding(100, WIDTH)
        self.h = nn.ModuleList(Block(activation) for _ in range(16))
        self.head = nn.Linear(WIDTH, 10, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        data = self.wte(ids)
        for block in self.h:
            data = block(data)
        out: Tensor = self.head(data)
        return out


def estimated(activation: type[nn.Module], place: Path, *, autocast: bool) -> PeakFacts:
    model = Stack(activation)
    optimizer = torch.optim.SGD(model.parameters())

    def step(ids: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if autocast else nullcontext():
            loss = model(ids).square().mean()
        loss.backward()
        optimizer.step()

    gpuledger.estimate(step, torch.zeros(32, 128, dtype=torch.long), gpu="h200", out=place)
    return PeakFacts(gpuledger.load(place).rank(), 0)


@pytest.mark.parametrize("activation", [NewGELUActivation, nn.GELU, nn.SiLU], ids=lambda one: one.__name__)
def test_a_predicted_saving_is_that_of_the_program_under_autocast(activation: type[nn.Module], tmp_path: Path) -> None:
    before = estimated(activation, tmp_path / "before.ledger", autocast=False)
    after = estimated(activation, tmp_path / "after.ledger", autocast=True)
    predicted = before.peak_bytes - with_autocast(before).peak_bytes
    assert predicted == pytest.approx(before.peak_bytes - after.peak_bytes, rel=0.1)
