"""Trainings on a real GPU that update their weights by themselves: what is optimizer state, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack  # noqa: E402

import gpuledger  # noqa: E402

WIDTH, WEIGHT, BIAS = 64, 4 * 64 * 64, 4 * 64
Update = Callable[[Tensor, Tensor], None]
Made = tuple[Update, object]
"""An update, and what it keeps."""


def adam(weights: list[Tensor]) -> Made:
    state = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in weights}

    def update(weight: Tensor, gradient: Tensor) -> None:
        m, v = state[weight]
        m.mul_(0.9).add_(gradient, alpha=0.1)
        v.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        weight.sub_(0.01 * m / (v.sqrt() + 1e-8))

    return update, state


def average(weights: list[Tensor]) -> Made:
    averages = {p: p.detach().clone() for p in weights}

    def update(weight: Tensor, gradient: Tensor) -> None:
        weight.sub_(gradient, alpha=0.01)
        averages[weight].mul_(0.99).add_(weight, alpha=0.01)

    return update, averages


def with_pytorchs_own(weights: list[Tensor]) -> Made:
    optimizer = torch.optim.SGD(weights, lr=0.01, momentum=0.9)
    update, state = adam(weights)

    def update_both(weight: Tensor, gradient: Tensor) -> None:
        assert not _get_current_dispatch_mode_stack()
        optimizer.step()
        update(weight, gradient)

    return update_both, (optimizer, state)


def train(
    make: Callable[[list[Tensor]], tuple[Update, object]], out: Path | None, steps: int = 6
) -> tuple[Tensor, Any]:
    """Train; return the weight and the recording."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()
    recording: Any = None
    context = gpuledger.record(out=out) if out else None
    if context is not None:
        recording = context.__enter__()
    update, kept = make([*model.parameters()])
    for _ in range(steps):
        model.zero_grad()
        model(torch.ones(8, WIDTH, device="cuda")).square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                assert weight.grad is not None
                update(weight, weight.grad)
    if context is not None:
        context.__exit__(None, None, None)
    assert kept is not None
    assert not _get_current_dispatch_mode_stack()
    return next(model.parameters()).detach().clone(), recording


def states(recording: Any) -> list[tuple[str, str, int]]:
    rank = recording.run().rank()
    assert [check for check in rank.manifest.checks if not check.ok] == []
    assert rank.manifest.notes == ()
    paths = {row["module_id"]: row["path"] for row in rank.table("modules").to_pylist()}
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    return sorted(
        (paths.get(block["module_id"], ""), names.get(block["name_id"], ""), block["requested_bytes"])
        for block in rank.table("blocks").to_pylist()
        if block["category"] == "optimizer_state"
    )


def test_what_carries_gradients_to_the_next_update_is_optimizer_state(tmp_path: Path) -> None:
    bare, _ = train(adam, None)
    weight, recording = train(adam, tmp_path / "run")
    assert torch.equal(bare, weight)
    each = [
        (number, f"{number}.{name}", size) for number in "02" for name, size in (("bias", BIAS), ("weight", WEIGHT))
    ]
    assert states(recording) == sorted(2 * each)


def test_an_average_of_weights_is_no_optimizer_state(tmp_path: Path) -> None:
    bare, _ = train(average, None)
    weight, recording = train(average, tmp_path / "run")
    assert torch.equal(bare, weight)
    assert states(recording) == []


def test_nothing_is_followed_beside_an_optimizer_of_pytorch(tmp_path: Path) -> None:
    _, recording = train(with_pytorchs_own, tmp_path / "run")
    assert len(states(recording)) == 4  # the momentum


def test_a_compiled_training_without_an_optimizer(tmp_path: Path) -> None:
    def compiled(weights: list[Tensor]) -> Made:
        update, state = adam(weights)
        return torch.compile(update), state  # type: ignore[return-value]

    bare, _ = train(compiled, None)
    weight, _recording = train(compiled, tmp_path / "run")
    assert torch.equal(bare, weight)
