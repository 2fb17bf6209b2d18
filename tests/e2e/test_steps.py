"""What counts as a step, told by real optimizers and real calls."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from present import present
from recorded import record_own
from torch import nn

pytestmark = pytest.mark.torch

Program = Callable[[Any], object]


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, scale: float = 1.0) -> None:
    optimizer.zero_grad()
    (model(torch.randn(2, 8)).sum() * scale).backward()
    optimizer.step()


def accumulated(_: Any) -> object:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(2, 8)).sum().backward()
        one_step(model, optimizer)
    return model


def scaled(_: Any) -> object:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(2, 8)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    return model


def two_optimizers(_: Any) -> object:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    first, second = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model)
    for _ in range(3):
        one_step(model, first)
        one_step(model, second)
    return model


def inference(_: Any) -> object:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    with torch.no_grad():
        for _ in range(3):
            nn.MSELoss()(model(nn.Identity()(torch.randn(2, 8))), torch.zeros(2, 2))
    return model


def inference_that_keeps_graphs(_: Any) -> object:
    model = nn.Linear(8, 2)
    for _ in range(4):
        model(torch.randn(2, 8))
    return model


def by_hand(_: Any) -> object:
    model = nn.Linear(8, 2)
    for _ in range(3):
        model(torch.randn(2, 8)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * present(parameter.grad))
                parameter.grad = None
    return model


def evaluated_first(_: Any) -> object:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model(torch.randn(2, 8))
    one_step(model, optimizer)
    return model


def marked(recording: Any) -> object:
    for _ in range(3):
        torch.randn(8).sum()
        recording.step()
    return None


def marked_and_trained(recording: Any) -> object:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        one_step(model, optimizer)
        recording.step()
    return model


def marked_every_second(recording: Any) -> object:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.step()
    for _ in range(2):
        one_step(model, optimizer)
        one_step(model, optimizer)
        recording.step()
    return model


@pytest.mark.parametrize(
    ("program", "kinds"),
    [
        (accumulated, ["optimizer"] * 2),
        (scaled, ["optimizer"] * 2),
        (two_optimizers, ["optimizer"] * 3),
        (inference, ["call"] * 3),
        (inference_that_keeps_graphs, ["call"] * 4),
        (by_hand, ["call"] * 3),
        (evaluated_first, ["optimizer"]),
        (marked, ["marked"] * 3),
        (marked_and_trained, ["optimizer", "marked", "marked"]),
        (marked_every_second, ["marked"] * 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_counts(program: Program, kinds: list[str]) -> None:
    run = record_own(program)
    assert run.steps == [(number, kind, True) for number, kind in enumerate(kinds, 1)]
    assert run.manifest.steps_seen == len(kinds)
    assert run.manifest.notes == ()


@pytest.mark.parametrize(
    ("program", "step_on"),
    [
        (two_optimizers, "auto"),
        (inference, "module"),
        (inference_that_keeps_graphs, "module"),
        (marked_and_trained, "auto"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_window_holds_its_steps_and_nothing_else(program: Program, step_on: str) -> None:
    """Calls are steps at once, whatever models and optimizers other tests have left in this process."""
    run = record_own(program, steps=(2, 2), step_on=step_on)
    assert [recorded for _, _, recorded in run.steps] == [False, True, False, False][: len(run.steps)]
    assert present(run.manifest.window).to_json() == {"asked": [2, 2], "first_step": 2, "last_step": 2}
    assert {block.step for block in run.blocks if block.alloc_index >= 0} == {2}
    assert run.manifest.closed_by == "last step"


def test_steps_tile_the_time_and_the_events() -> None:
    run = record_own(two_optimizers)
    rows = run.tables["steps"]
    for before, after in pairwise(rows):
        assert before["end_ns"] <= after["start_ns"]
        assert before["end_index"] + 1 == after["start_index"]
    assert all(row["start_ns"] < row["end_ns"] and row["start_index"] <= row["end_index"] for row in rows)
    assert all(0 <= row["paused_ns"] <= row["end_ns"] - row["start_ns"] for row in rows)


@pytest.mark.parametrize("program", [inference, inference_that_keeps_graphs])
def test_a_training_before_the_recording_takes_no_steps_from_it(program: Program) -> None:
    """As in a notebook: the model and the optimizer of an earlier training are alive, and another model is called."""
    before = nn.Linear(8, 3)
    optimizer = torch.optim.Adam(before.parameters())
    one_step(before, optimizer)
    run = record_own(program)
    assert run.manifest.steps_seen == (3 if program is inference else 4)
    assert {kind for _, kind, _ in run.steps} == {"call"}


def test_a_training_that_goes_on_takes_the_calls_before_its_steps() -> None:
    """A teacher is called before the student, with an optimizer that has stepped before the recording."""
    teacher, student = nn.Linear(8, 2), nn.Linear(8, 2)
    optimizer = torch.optim.Adam(student.parameters())
    one_step(student, optimizer)

    def distilled(_: Any) -> object:
        for _ in range(3):
            with torch.no_grad():
                teacher(torch.randn(2, 8))
            one_step(student, optimizer)
        return teacher

    assert [kind for _, kind, _ in record_own(distilled).steps] == ["optimizer"] * 3
