"""A gradient that is added to that of an earlier micro-batch is one until then, and no temporary memory."""

from __future__ import annotations

import pytest
import torch
from recorded import Block, record_own
from torch import Tensor, nn

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak

pytestmark = pytest.mark.torch

WIDTH, STEPS = 64, 3
WEIGHT_BYTES = WIDTH * WIDTH * 4


def blocks_of(micro_batches: int, *, to_none: bool = True) -> list[Block]:
    """Return what backward passes allocate of a weight's size, in a module and beside ``.grad``."""

    def program(_: object) -> object:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _step in range(STEPS):
            for _batch in range(micro_batches):
                model(torch.ones(4, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
        return model, optimizer

    found = [block for block in record_own(program).blocks if block.phase == "backward" and block.module]
    return [block for block in found if block.bytes == WEIGHT_BYTES and block.category != "gradient"]


def test_gradients_of_later_micro_batches() -> None:
    found = blocks_of(3)
    assert {block.category for block in found} == {"activation_gradient"}
    assert {block.module for block in found} == {"0", "2"}
    assert len(found) == STEPS * 2 * 2


def test_gradients_that_are_set_to_zero_are_added_to_in_each_step() -> None:
    found = blocks_of(1, to_none=False)
    assert [block.category for block in found] == ["activation_gradient"] * 2 * (STEPS - 1)


def test_the_only_batch_of_a_step_adds_to_nothing() -> None:
    assert not blocks_of(1)


def test_an_estimate_has_them_too() -> None:
    model = nn.Linear(512, 512, bias=False)

    def step(rows: Tensor) -> None:
        model.zero_grad()
        for _batch in range(2):
            model(rows).mean().backward()

    rank = gpuledger.estimate(step, torch.zeros(8, 512), steps=3).run.rank(0)
    accounts = {one.category: one.bytes for one in break_down(rank, find_peak(rank), by=("category",)).accounts}
    assert accounts["activation_gradient"] >= accounts["gradient"] == accounts["weight"] == 512 * 512 * 4
