"""Comparisons of whole tensors that are not computed: what they decide is decided by the program's source."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from loop_programs import peak_of

pytestmark = pytest.mark.torch

_ROUNDS = """
import torch
centers = torch.rand(1000, 256, device="cuda") @ torch.rand(256, 256, device="cuda")
kept = []
for _ in range({rounds}):
    moved = centers @ torch.rand(256, 256, device="cuda")
    if torch.allclose(moved, centers):
        break
    kept.append(moved)
    centers = moved
"""


def test_rounds_that_end_when_nothing_changes_run_to_their_other_end(tmp_path: Path) -> None:
    few, many = (peak_of(tmp_path, _ROUNDS.replace("{rounds}", str(rounds))) for rounds in (4, 12))
    assert many - few == 8 * 1000 * 256 * 4
