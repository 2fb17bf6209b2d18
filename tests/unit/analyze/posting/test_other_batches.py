"""Steps of another batch and length, recorded on the CPU: their allocations have the modules of the usual step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gpuledger import record
from gpuledger.analyze.memory.lifetimes import read_numbers
from gpuledger.analyze.posting.late.step_orders import match_step

pytestmark = pytest.mark.torch

WIDTH = 64
USUAL = (4, WIDTH)
"""Rows and length."""
LEAST_KNOWN_FRAC = 0.85


class Attention(nn.Module):
    """Scores that grow with the square of the length."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (self.keys(x) @ x.transpose(-1, -2)).softmax(-1)
        return x + scores @ self.values(x)


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(5)))


def attention() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(Attention(), nn.LayerNorm(WIDTH)) for _ in range(4)), nn.Linear(WIDTH, 3))


@pytest.mark.parametrize("make", [layers, attention])
@pytest.mark.parametrize("large", [(36, WIDTH), (4, 5 * WIDTH), (12, 3 * WIDTH), (1, WIDTH)])
def test_each_part_of_another_step_has_the_modules_of_the_usual_one(
    make: Callable[[], nn.Module], large: tuple[int, int], tmp_path: Path
) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording:
        model = make()
        optimizer = torch.optim.Adam(model.parameters())
        for rows, length in (USUAL, USUAL, USUAL, large):
            model(torch.randn(rows, length, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    rank = recording.run().rank(0)
    columns = [
        read_numbers(rank, "blocks", name, -1) for name in ("alloc_index", "step", "requested_bytes", "module_id")
    ]
    index, step, size, module = (column[np.argsort(columns[0], kind="stable")] for column in columns)
    usual, other = ((index >= 0) & (step == number) for number in (3, 4))
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        count = round(share * other.sum())
        found = match_step(size[other][:count].tolist(), size[usual].tolist(), module[usual].tolist(), is_whole=False)
        places = np.array(found.places)
        known = places >= 0
        assert (module[usual][places[known]] == module[other][:count][known]).all()
        assert known.mean() > LEAST_KNOWN_FRAC
