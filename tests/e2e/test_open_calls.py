"""A recording that starts inside the call of a module: what that module allocates itself belongs to it."""

from __future__ import annotations

import pytest
import torch
from recorded import record_own
from torch import nn

pytestmark = pytest.mark.torch

MINE, LATER = 1000, 3000


class Trainer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(16, 4)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

    def forward(self, steps: int) -> None:
        for _ in range(steps):
            torch.zeros(MINE).sum()
            self.optimizer.zero_grad()
            self.net(torch.ones(2, 16)).sum().backward()
            self.optimizer.step()


def test_what_a_module_allocates_after_steps_in_its_own_call_belongs_to_it() -> None:
    def program(_: object) -> object:
        trainer = Trainer()
        trainer(4)
        for _step in range(2):
            trainer.optimizer.zero_grad()
            trainer.net(torch.ones(2, 16)).sum().backward()
            torch.zeros(LATER).sum()
            trainer.optimizer.step()
        return trainer

    run = record_own(program, steps=(3, 6))
    assert {block.module for block in run.blocks if block.bytes == 4 * MINE} == {"Trainer"}
    assert {block.module for block in run.blocks if block.bytes == 4 * LATER} == {""}
    assert {block.module for block in run.of("gradient")} == {"net"}
    assert {step for step, _, recorded in run.steps if recorded} == {3, 4, 5, 6}
