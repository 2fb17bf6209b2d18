"""Work of some iterations only, such as an evaluation in every hundredth step: a loop has one iteration with it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
from loop_programs import NEEDED, LoopProgram, peak_of

pytestmark = pytest.mark.torch


def test_work_of_a_later_step_is_done_once(program: LoopProgram) -> None:
    worked = program.run("""
        for number in range(100_000):
            step()
            if (number + 1) % 5000 == 0:
                work()
        work("after")
    """)
    assert worked == [(4, ""), (4, "after")]


def test_work_that_was_done_in_the_first_step_only_is_done_again(program: LoopProgram) -> None:
    """In the first step there are no states of an optimizer yet."""
    worked = program.run("""
        for number in range(100):
            if not number % 10:
                work()
            step()
    """)
    assert worked == [(0, ""), (3, "")]


def test_conditions_on_the_same_number_agree(program: LoopProgram) -> None:
    """Also as an argument; those that exclude each other hold in iterations of their own."""
    worked = program.run("""
        for number in range(100):
            if number % 10 == 7:
                work(number % 10 == 7)
            if number % 10 == 8:
                work(number % 10 == 7)
            step()
    """)
    assert worked == [(3, True), (4, False)]


def test_what_was_skipped_by_a_condition_is_done(program: LoopProgram) -> None:
    worked = program.run("""
        for number in range(1, 100):
            step()
            if number % 50 != 0:
                continue
            work()
    """)
    assert worked == [(4, "")]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("if number % 50 == 49: print(number, flush=True)", id="reports only"),
        pytest.param("if number % 50 == 49: model.save_pretrained(work())", id="would write"),
        pytest.param("if 24 % size == 5: work()", id="not a counter"),
        pytest.param("if lengths[number] % 8 == 5: work()", id="lengths"),
        pytest.param("if number % 2 == 5: work()", id="never holds"),
        pytest.param("if number % 2 == 1 and number > 0: work()", id="has held"),
        pytest.param("if number % 2.5 == 1: work()", id="not whole numbers"),
    ],
)
def test_other_conditions_give_no_iteration(program: LoopProgram, source: str) -> None:
    program.run(f"""
        size, lengths = 7, [16, 8, 32, 24] * 25
        for number in range(100):
            step()
            {source}
    """)
    assert program.steps == NEEDED


def test_work_after_some_epochs_is_done(program: LoopProgram) -> None:
    worked = program.run("""
        for epoch in range(90):
            for batch in range(20):
                step()
            if epoch % 30 == 29:
                work()
    """)
    assert [what for _, what in worked] == [""]


def test_the_end_of_a_loop_is_not_changed(program: LoopProgram) -> None:
    """A loop until a number can be divided would not end."""
    worked = program.run("""
        for number in range(100):
            padded = number
            while padded % 8 != 0:
                padded += 1
            step()
        work(padded)
    """)
    assert worked == [(3, 8)]


_LARGE_EVALUATION = """
from torch import nn
import torch
model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 8)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
for number in range(1000):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if (number + 1) % {every} == 0:
        with torch.no_grad():
            model(torch.randn(4096, 64, device="cuda"))
"""
_PENALTY_OF_GRADIENTS = """
from torch import nn
import torch
critic = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1)).to("cuda")
optimizer = torch.optim.AdamW(critic.parameters())
for number in range(1000):
    inputs = torch.randn(512, 256, device="cuda", requires_grad=True)
    scores = critic(inputs)
    loss = scores.mean()
    if number % {every} == 0:
        slope = torch.autograd.grad(scores.sum(), inputs, create_graph=True)[0]
        loss = loss + slope.pow(2).sum(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_HISTORY_EVERY_FEW_EPOCHS = """
from torch import nn
import torch
model = nn.GRU(32, 256, batch_first=True).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100):
    for number in range(50):
        model(torch.randn(4, 16, 32, device="cuda"))[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if epoch % {every} != {every} - 1:
        continue
    model(torch.randn(64, 200, 32, device="cuda"))[0].sum().backward()
"""


@pytest.mark.parametrize("source", [_LARGE_EVALUATION, _PENALTY_OF_GRADIENTS, _HISTORY_EVERY_FEW_EPOCHS])
def test_rare_work_needs_the_memory_of_frequent_work(source: str, tmp_path: Path) -> None:
    peaks = [peak_of(tmp_path, source.replace("{every}", str(every))) for every in (1, 40)]
    assert peaks[0] == peaks[1] > 4 << 20
