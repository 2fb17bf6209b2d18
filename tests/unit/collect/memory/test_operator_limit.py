"""A program of any length is recorded up to a limit, and then runs at its own speed until a step begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from gpuledger import record
from gpuledger.collect.memory import operator_limit
from gpuledger.collect.memory.operator_limit import BEFORE_STEPS, IN_STEP
from gpuledger.model.run import Run

pytestmark = pytest.mark.torch

STEPS = 3


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_limit, "MOST_BEFORE_STEPS", 40)
    monkeypatch.setattr(operator_limit, "MOST_IN_STEP", 400)


def train(steps: int = STEPS, *, long_step: int = 0, operators: int = 500) -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1, steps + 1):
        for _ in range(operators if step == long_step else 0):
            torch.ones(8)
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()


def notes_of(run: Run) -> list[str]:
    return [note for note in run.rank(0).manifest.notes if "operators" in note]


def is_recording() -> bool:
    return bool(_get_current_dispatch_mode_stack())


def test_after_the_limit_operators_run_without_a_dispatch_mode_and_nothing_is_written(tmp_path: Path) -> None:
    kept = []
    with record(out=tmp_path / "run", devices="cpu") as recording:
        modes = []
        for number in range(1000):
            kept.append(torch.full((83,), float(number)))  # no other test leaves tensors of this size
            modes.append(is_recording())
    assert modes == sorted(modes, reverse=True)
    assert 39 <= sum(modes) <= 44
    rank = recording.run().rank(0)
    assert sum(row["requested_bytes"] == 83 * 4 for row in rank.table("blocks").to_pylist()) == 41
    assert notes_of(recording.run()) == [BEFORE_STEPS.format(most=40)]
    assert all(check.ok for check in rank.manifest.checks)
    assert not is_recording()


def test_operators_without_memory_of_their_own_count_too(tmp_path: Path) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording:
        x = torch.zeros(8)
        for _ in range(100):
            x.add_(1)
        assert not is_recording()
    assert notes_of(recording.run()) == [BEFORE_STEPS.format(most=40)]


def test_a_training_after_a_long_preparation_is_recorded_whole(tmp_path: Path) -> None:
    kept = []
    with record(out=tmp_path / "long", devices="cpu") as recording:
        for _ in range(200):
            kept.append(torch.ones(1000))
        del kept[:50]
        assert not is_recording()
        train()
    run = recording.run()
    with record(out=tmp_path / "short", devices="cpu") as recording:
        train()

    def of_steps(one: Run) -> list[tuple[int, int, str]]:
        rows = [row for row in one.rank(0).table("blocks").to_pylist() if row["step"] in (2, STEPS)]
        return sorted((row["step"], row["requested_bytes"], row["category"]) for row in rows)

    def weight_bytes(one: Run) -> int:
        rows = one.rank(0).table("blocks").to_pylist()
        own = [row for row in rows if row["category"] == "weight" and row["alloc_index"] >= 0]
        return sum(row["requested_bytes"] for row in own)

    assert of_steps(run) == of_steps(recording.run())
    assert weight_bytes(run) == weight_bytes(recording.run()) == 64 * 64 * 4 + 64 * 4
    assert notes_of(run) == [BEFORE_STEPS.format(most=40)]
    assert all(check.ok for check in run.rank(0).manifest.checks)
    held = [row for row in run.rank(0).table("blocks").to_pylist() if row["requested_bytes"] == 4000]
    assert len(held) == 41 + 150  # those before the limit, and those that are alive when recording goes on


def test_a_long_step_is_recorded_in_part_and_the_next_one_whole(tmp_path: Path) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording:
        train(long_step=2)
    run = recording.run()
    assert notes_of(run) == [IN_STEP.format(most=400, step=2)]
    rows = run.rank(0).table("blocks").to_pylist()
    assert sum(row["step"] == 2 and row["requested_bytes"] == 32 for row in rows) <= 401
    assert {row["category"] for row in rows if row["step"] == 3} >= {"activation", "gradient"}
    assert all(check.ok for check in run.rank(0).manifest.checks)


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        for _ in range(60):
            grad = grad + 0
        return grad


def test_a_limit_inside_backward_takes_effect_after_it(tmp_path: Path) -> None:
    x = torch.ones(8, requires_grad=True)
    with record(out=tmp_path / "run", devices="cpu") as recording:
        _Slow.apply(x).sum().backward()
        for _ in range(100):
            torch.ones(8)
        assert not is_recording()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0] * 8
    assert notes_of(recording.run()) == [BEFORE_STEPS.format(most=40)]


class _Theirs(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


def test_beside_a_mode_of_the_program_ours_leaves_when_that_one_has_ended(tmp_path: Path) -> None:
    with record(out=tmp_path / "run", devices="cpu") as recording:
        with _Theirs() as theirs:
            for _ in range(100):
                torch.ones(8)
            assert _get_current_dispatch_mode_stack()[-1] is theirs
        for _ in range(200):
            torch.ones(8)
        assert not is_recording()
        with _Theirs() as theirs:
            nn.Linear(4, 4)(torch.ones(4))
            assert _get_current_dispatch_mode_stack() == [theirs]
        nn.Linear(4, 4)(torch.ones(4))
        assert is_recording()
    assert notes_of(recording.run()) == [BEFORE_STEPS.format(most=40)]
