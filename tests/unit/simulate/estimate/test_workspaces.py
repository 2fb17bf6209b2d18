"""Workspaces of cuBLAS are workspaces in estimates of programs without modules and steps, too."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from loop_programs import estimate_of

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak

pytestmark = pytest.mark.torch

MIB = 1 << 20
_PRODUCT = """
import torch
table = torch.zeros(8 << 20, device="cuda")  # has the size of the workspace
rows = torch.randn(256, 1024, device="cuda")
near = (rows @ rows.T).argmax(1)
"""


def test_a_workspace_outside_of_modules_is_one(tmp_path: Path) -> None:
    rank = estimate_of(tmp_path, _PRODUCT).run.rank()
    accounts = break_down(rank, find_peak(rank), by=("category",)).accounts
    found = {account.category: account.bytes for account in accounts}
    assert found["workspace"] == 32 * MIB
    assert found["other"] == (32 + 1) * MIB + 256 * 8
    assert found["temporary"] == 256 * 256 * 4


_KEPT_OUTPUTS = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(3):
    output = model(torch.randn(1024, 256, device="cuda"))  # 1 MiB, as the workspace of cuBLASLt
    kept.append(output)
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_outputs_with_the_size_of_a_workspace_are_none(tmp_path: Path) -> None:
    rank = estimate_of(tmp_path, _KEPT_OUTPUTS).run.rank()
    accounts = break_down(rank, find_peak(rank), by=("category",)).accounts
    found = {account.category: account.bytes for account in accounts}
    assert found["workspace"] == (2 * 32 + 1) * MIB  # cuBLAS of forward and of backward, cuBLASLt
    assert found["activation"] >= 3 * MIB
