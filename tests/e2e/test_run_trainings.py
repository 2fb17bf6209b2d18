"""Real trainings below ``gpuledger run``: steps, ranks and databases of each, against answers known beforehand."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from present import present
from programs import COMPILER_ASIDE, Ended, write_script
from quick import recorded

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import resolve_instant
from gpuledger.model.run import Rank
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Training:
    """A program, the steps it makes and what ends them, and how many numbers its weights are."""

    source: str
    steps: int
    weights: int
    kinds: frozenset[str] = frozenset({"optimizer"})


GAN = (
    COMPILER_ASIDE
    + """
from torch import nn
painter = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
paints = torch.optim.Adam(painter.parameters())
judges = torch.optim.Adam(critic.parameters())
for _ in range(5):
    real, made = torch.randn(64, 16), painter(torch.randn(64, 8))
    mixed = (real + made.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(outputs=critic(mixed).sum(), inputs=mixed, create_graph=True)
    judges.zero_grad()
    (critic(real).mean() - critic(made.detach()).mean() + slope.square().mean()).backward()
    judges.step()
    paints.zero_grad()
    critic(made).mean().backward()
    paints.step()
"""
)
IN_BACKWARD = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
first, second = nn.Linear(16, 32), nn.Linear(32, 4)
optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for m in (first, second) for p in m.parameters()}
def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad(set_to_none=False)
for parameter in optimizers:
    parameter.register_post_accumulate_grad_hook(update)
for _ in range(5):
    second(checkpoint(first, torch.randn(8, 16), use_reentrant=False)).sum().backward()
"""
SCALED = """
import torch
model = torch.nn.Linear(16, 16)
adam = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler("cpu")
for number in range(5):
    adam.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 16)).float().sum()
    scaler.scale(loss * float("inf") if number == 1 else loss).backward()
    scaler.step(adam)
    scaler.update()
"""
INFERENCE = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
with torch.inference_mode():
    for _ in range(3):
        model(torch.randn(8, 16))
"""
NO_MODULE = (
    COMPILER_ASIDE
    + """
weight = torch.randn(64, 64, requires_grad=True)
optimizer = torch.optim.Adam([weight])
for _ in range(4):
    optimizer.zero_grad(set_to_none=False)
    (torch.randn(8, 64) @ weight).relu().sum().backward()
    optimizer.step()
"""
)
TRAININGS = {
    "two optimizers and a gradient penalty": Training(GAN, 5, (8 * 32 + 32 + 32 * 16 + 16) + (16 * 32 + 32 + 32 + 1)),
    "optimizers in backward, recomputed": Training(IN_BACKWARD, 5, 16 * 32 + 32 + 32 * 4 + 4),
    "a step the scaler skips": Training(SCALED, 4, 16 * 16 + 16),
    "inference": Training(INFERENCE, 3, 16 * 32 + 32 + 32 * 4 + 4, frozenset({"call"})),
    "no module": Training(NO_MODULE, 4, 64 * 64),
}


def assert_closed(rank: Rank) -> None:
    """Assert that a rank's databases are whole: every check holds, and accounts sum to what was allocated."""
    assert (rank.manifest.status, rank.manifest.damaged) == ("closed", ())
    assert len(rank.manifest.checks) >= 7
    assert [check for check in rank.manifest.checks if not check.ok] == []
    for at in ("peak", "end"):
        databases = break_down(rank, resolve_instant(rank, at))
        assert sum(account.bytes for account in databases.accounts) == databases.allocated_bytes


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())
def test_a_training_is_recorded_as_it_is(training: Training, tmp_path: Path) -> None:
    write_script(tmp_path, training.source)
    assert recorded(["train.py"], tmp_path) == Ended(0, b"", b"")
    rank = load(tmp_path / "train.ledger").rank()
    assert_closed(rank)
    assert present(rank.manifest.window).to_json() == {"first_step": 1, "last_step": 3, "asked": [1, 3]}
    steps = rank.table("steps", ("step", "kind")).to_pylist()
    assert [row["step"] for row in steps] == list(range(1, training.steps + 1))
    assert {row["kind"] for row in steps} == training.kinds
    databases = break_down(rank, resolve_instant(rank, "end"), by=("category",))
    held = {account.category: account.bytes for account in databases.accounts}
    assert held["weight"] == training.weights * FLOAT_BYTES


PROCESSES = (
    COMPILER_ASIDE
    + """
import os
import torch.multiprocessing as multiprocessing
torch.set_num_threads(1)
def train(number):
    model = torch.nn.Linear(8, 8 * (1 + number))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    multiprocessing.spawn(train, nprocs=2)
    train(0)
    child = os.fork()
    if not child:
        train(0)
        raise SystemExit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
)


def test_a_program_of_several_processes(tmp_path: Path) -> None:
    """Processes that train are ranks, the one that starts them too; a forked copy of one is not."""
    write_script(tmp_path, PROCESSES)
    assert recorded(["train.py"], tmp_path) == Ended(0, b"3\n", b"")
    run = load(tmp_path / "train.ledger")
    assert Counter(rank.manifest.steps_seen for rank in run.ranks) == {4: 3}
    for rank in run.ranks:
        assert_closed(rank)
