"""A program that ends before a step is profiled has the times of the operators in its recorded steps."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from gpuledger import record, scope
from gpuledger.analyze.step.step_parts import step_parts
from gpuledger.analyze.step.times import break_down_time
from gpuledger.analyze.step.work import work_note
from gpuledger.collect.memory import operator_limit, operator_times
from gpuledger.model.run import Rank

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with scope("inner"):
            return self.second(torch.relu(self.first(x)))


def recorded(
    out: Path, steps: int, *, fails_in: int = 0, last_step: int = 3, repeat: int = 1, profiled: int = 0
) -> Rank:
    """Return the rank of a training with ``steps`` steps.

    It raises in forward of step ``fails_in``, and profiles backward of step ``profiled`` itself.
    """
    with (
        suppress(ZeroDivisionError),
        record(out=out, devices="cpu", steps=(1, last_step), passes="memory,time") as recording,
    ):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, steps + 1):
            loss = sum(model(torch.ones(16, 64)).square().sum() for _ in range(repeat))
            if step == fails_in:
                raise ZeroDivisionError
            with torch.profiler.profile() if step == profiled else nullcontext():
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return recording.run().rank(0)


def operators(rank: Rank, step: int) -> dict[str, set[tuple[str, str]]]:
    """Return name -> module and phase of the operators in a step that multiply matrices."""
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    modules = {row["module_id"]: row["path"] for row in rank.table("modules").to_pylist()}
    found: dict[str, set[tuple[str, str]]] = {}
    for row in rank.table("spans").to_pylist():
        if row["kind"] == "host" and row["step"] == step:
            place = modules.get(row["module_id"], ""), row["phase"]
            found.setdefault(names[row["name_id"]], set()).add(place)
    return {name: places for name, places in found.items() if name in ("aten::addmm", "aten::mm", "aten::add_")}


@pytest.mark.parametrize(("steps", "timed"), [(1, (1, 1)), (2, (2, 2)), (3, (2, 3))])
def test_a_short_program_has_times_of_its_recorded_steps_by_module_and_phase(
    tmp_path: Path, steps: int, timed: tuple[int, int]
) -> None:
    rank = recorded(tmp_path / "run", steps)
    assert (rank.manifest.recorded_time_steps, rank.manifest.time_steps) == (timed, None)
    assert operators(rank, steps) == {
        "aten::addmm": {("first", "forward"), ("second", "forward")},
        "aten::mm": {("first", "backward"), ("second", "backward")},
        "aten::add_": {("", "optimizer")},
    }
    times = break_down_time(rank)
    assert times is not None
    assert times.steps == timed[1] - timed[0] + 1
    assert {(one.scope, one.phase) for one in times.scopes} >= {("inner", "forward"), ("inner", "backward")}
    assert any(Path(__file__).name in one.line for one in times.lines)
    assert "while memory was recorded" in (work_note(rank, -1) or "")
    assert step_parts(rank) is None  # the rest of a recorded step is the recorder's


def test_a_step_that_fails_is_not_timed(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", 3, fails_in=3).manifest.recorded_time_steps == (2, 2)
    assert recorded(tmp_path / "first", 1, fails_in=1).manifest.recorded_time_steps is None
    assert recorded(tmp_path / "later", 4, fails_in=4).manifest.recorded_time_steps == (2, 3)


def test_a_profiled_step_comes_before_recorded_ones(tmp_path: Path) -> None:
    rank = recorded(tmp_path / "run", 5)
    assert (rank.manifest.recorded_time_steps, rank.manifest.time_steps) == (None, (4, 5))
    assert {row["step"] for row in rank.table("spans").to_pylist() if row["kind"] == "host"} <= {0, 4, 5}


def test_a_program_with_a_profiler_of_its_own_has_no_times_of_recorded_steps(tmp_path: Path) -> None:
    rank = recorded(tmp_path / "run", 3, profiled=2)
    assert rank.manifest.recorded_time_steps is None
    assert not [row for row in rank.table("spans").to_pylist() if row["kind"] == "host"]


def test_the_newest_recorded_steps_are_timed(tmp_path: Path) -> None:
    assert recorded(tmp_path / "run", 6, last_step=6).manifest.recorded_time_steps == (4, 6)


def test_a_step_with_too_many_operators_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_times, "MOST_OPERATORS", 200)
    assert recorded(tmp_path / "run", 2).manifest.recorded_time_steps == (2, 2)
    assert recorded(tmp_path / "long", 2, repeat=100).manifest.recorded_time_steps is None


def test_a_step_that_was_not_recorded_to_its_end_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_limit, "MOST_IN_STEP", 100)
    assert recorded(tmp_path / "run", 2).manifest.recorded_time_steps == (2, 2)
    assert recorded(tmp_path / "long", 2, repeat=20).manifest.recorded_time_steps is None
