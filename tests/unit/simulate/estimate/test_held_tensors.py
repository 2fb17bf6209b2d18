"""Tensors that variables of a program hold have their names, and the categories of a recording, in estimates."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from loop_programs import estimate_of

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak

pytestmark = pytest.mark.torch

_TRAINING = """
import torch

net = torch.nn.Linear(512, 512, bias=False).cuda()
features = net(torch.zeros(2, 512, device="cuda")).shape[1]  # a call that only tries the shapes
replay = torch.zeros(1000, features, device="cuda")
average = {name: one.detach().clone() for name, one in net.state_dict().items()}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    net(replay[:8] + step).square().mean().backward()
    optimizer.step()
    for name, one in net.state_dict().items():
        average[name].lerp_(one, 0.01)
"""


def test_data_that_a_program_keeps_is_no_activation(tmp_path: Path) -> None:
    rank = estimate_of(tmp_path, _TRAINING).run.rank()
    accounts = break_down(rank, find_peak(rank), by=("category", "tensor")).accounts
    found = {account.name: (account.category, account.bytes) for account in accounts if account.name}
    assert found["replay"] == ("input", 1000 * 512 * 4), "batches are parts of it"
    assert found["average['weight']"] == ("other", 512 * 512 * 4)


_SPARSE = """
import torch

table = torch.nn.Embedding(10_000, 64, sparse=True).cuda()
optimizer = torch.optim.SparseAdam(table.parameters())
for step in range(6):
    result = table(torch.arange(8000, device="cuda")).exp().exp().exp()
    optimizer.zero_grad()
    result.sum().backward()
    optimizer.step()
    del result
"""


def test_the_indices_and_values_of_a_sparse_gradient_are_gradients(tmp_path: Path) -> None:
    """At the peak, the forward of a later step, the gradient of the one before is still there."""
    rank = estimate_of(tmp_path, _SPARSE).run.rank()
    accounts = break_down(rank, find_peak(rank), by=("category",)).accounts
    found = {account.category: account.bytes for account in accounts}
    assert found["gradient"] == 8000 * (64 * 4 + 8)
    assert "activation_gradient" not in found
