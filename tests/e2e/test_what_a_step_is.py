"""Steps are counted as a person would count the iterations of each kind of program."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import write_script
from quick import recorded

from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

ITERATIONS = 8

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
"""

GAN = """
generator, critic = nn.Linear(8, 16), nn.Linear(16, 1)
first, second = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
for _ in range(8):
    made = generator(torch.randn(4, 8))
    first.zero_grad()
    (critic(torch.randn(4, 16)).mean() - critic(made.detach()).mean()).backward()
    first.step()
    second.zero_grad()
    (-critic(made).mean()).backward()
    second.step()
"""
GAN_CRITIC_FIRST = GAN.replace("    made = generator(torch.randn(4, 8))\n", "").replace(
    "critic(made.detach())", "critic((made := generator(torch.randn(4, 8))).detach())"
)
WEIGHT_NORM = """
from torch.nn.utils.parametrizations import weight_norm
model = nn.Sequential(weight_norm(nn.Linear(8, 8)), nn.ReLU(), weight_norm(nn.Linear(8, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
TEACHER = """
teacher, student = nn.Linear(8, 4).eval(), nn.Linear(8, 4)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for _ in range(8):
    x = torch.randn(4, 8)
    with torch.no_grad():
        wanted = teacher(x)
    optimizer.zero_grad()
    (student(x) - wanted).square().mean().backward()
    optimizer.step()
"""
HELPERS_BEFORE = """
model, helper = nn.Linear(8, 4), nn.Linear(8, 8)
with torch.no_grad():
    for _ in range(3):
        shift = helper(torch.randn(4, 8)).mean()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    (model(torch.randn(4, 8)) - shift).square().mean().backward()
    optimizer.step()
"""
VALIDATION = """
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if number % 2:
        model.eval()
        with torch.no_grad():
            for _ in range(5):
                model(torch.randn(4, 8))
        model.train()
"""
ACCUMULATION = """
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(32):
    model(torch.randn(4, 8)).square().mean().backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""
RETRIEVER = """
retriever, reader = nn.Linear(8, 8), nn.Linear(8, 4)
optimizer = torch.optim.SGD([*retriever.parameters(), *reader.parameters()], lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    reader(retriever(torch.randn(4, 8)).relu()).square().mean().backward()
    optimizer.step()
"""
INFERENCE = """
model = nn.Linear(8, 4).eval()
with torch.inference_mode():
    for _ in range(8):
        model(torch.randn(4, 8))
"""
PROGRAMS = {
    "a GAN": GAN,
    "a GAN that calls its critic first": GAN_CRITIC_FIRST,
    "parametrizations": WEIGHT_NORM,
    "a teacher and a student": TEACHER,
    "validation after every second step": VALIDATION,
    "four batches a step": ACCUMULATION,
    "a retriever and a reader": RETRIEVER,
    "inference": INFERENCE,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_are_the_programs_iterations(name: str, tmp_path: Path) -> None:
    write_script(tmp_path, HEAD + PROGRAMS[name])
    ended = recorded(["train.py"], tmp_path, ("-q", "--passes", "memory"))
    assert ended.status == 0, ended.stderr
    rank = load(tmp_path / "train.ledger").rank(0)
    kinds = [row["kind"] for row in rank.table("steps").to_pylist()]
    assert kinds == ["call" if name == "inference" else "optimizer"] * ITERATIONS
