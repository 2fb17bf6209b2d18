"""An estimate of a program that keeps more with every step advises to keep less, before a smaller batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_programs import estimate_of

from gpuledger.analyze.overview.findings import find_findings
from gpuledger.services.runs import open_run

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
from collections import deque
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = {history}
for number in range(200):
    outputs = model(torch.zeros(64, 256, device="cuda"))
    optimizer.zero_grad()
    outputs.square().mean().backward()
    optimizer.step()
    history.append(outputs.detach().repeat(64, 1))
"""


def growing_titles(directory: Path, history: str) -> list[str]:
    estimate_of(directory, PROGRAM.format(history=history))
    (rank,) = open_run(directory / "0.ledger").ranks
    return [one.title for one in find_findings(rank) if one.grows]


def test_what_all_steps_keep_comes_first_although_most_of_them_are_not_simulated(tmp_path: Path) -> None:
    assert growing_titles(tmp_path, "[]") == ["Every step keeps 4.0 MiB more"]


def test_a_limit_that_is_reached_is_no_growth(tmp_path: Path) -> None:
    assert growing_titles(tmp_path, "deque(maxlen=3)") == []
