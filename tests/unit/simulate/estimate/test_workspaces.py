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
