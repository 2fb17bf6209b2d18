"""Leaks before and after ``optimizer.step()`` are found in three recorded steps; what is bounded is no leak."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from flown import fly, forked
from torch import nn

from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.collect.flight import census
from gpuledger.model.run import KeptRank, Rank

pytestmark = pytest.mark.torch

STEPS = 10


class Trainer:
    """A small training. ``kept`` holds what a program keeps."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.kept: Any = []

    def step(self, x: torch.Tensor | None = None) -> torch.Tensor:
        self.optimizer.zero_grad()
        output: torch.Tensor = self.model(torch.randn(128, 64) if x is None else x)
        output.square().mean().backward()
        self.optimizer.step()
        return output

    def evaluate(self) -> torch.Tensor:
        output: torch.Tensor = self.model(torch.randn(300, 64))
        return output


Body = Callable[[Trainer, int], Any]


def outputs_with_their_graphs(trainer: Trainer, _: int) -> None:
    trainer.step()
    trainer.kept.append(trainer.evaluate())


def outputs_after_the_peak(trainer: Trainer, number: int) -> None:
    if number == 0:
        torch.ones(1 << 22).sum()
    outputs_with_their_graphs(trainer, number)


def outputs_without_graphs(trainer: Trainer, _: int) -> None:
    trainer.step()
    with torch.no_grad():
        trainer.kept.append(trainer.evaluate())


def losses_whose_graphs_keep_all(trainer: Trainer, _: int) -> None:
    trainer.step()
    trainer.kept.append(trainer.evaluate().mean())


def a_sum_whose_graph_keeps_all(trainer: Trainer, number: int) -> None:
    trainer.step()
    loss = trainer.evaluate().mean()
    trainer.kept = loss if number == 0 else trainer.kept + loss


def copies_of_outputs(trainer: Trainer, _: int) -> None:
    trainer.kept.append(trainer.step().detach().repeat(4, 1))


def outputs_of_the_step(trainer: Trainer, _: int) -> None:
    trainer.kept.append(trainer.step())


def batches(trainer: Trainer, _: int) -> None:
    x = torch.randn(300, 64)
    trainer.step(x)
    trainer.kept.append(x)


def _double_buffer(trainer: Trainer, number: int) -> None:
    trainer.step(torch.randn(300, 64) if number == 0 else trainer.kept)
    trainer.kept = torch.randn(300, 64)


def _batches_prepared_ahead(trainer: Trainer, number: int) -> None:
    if number == 0:
        trainer.kept = deque(torch.randn(300, 64) for _ in range(3))
    trainer.step(trainer.kept.popleft())
    trainer.kept.append(torch.randn(300, 64).mul(2))


def _last_outputs(trainer: Trainer, number: int) -> None:
    if number == 0:
        trainer.kept = deque(maxlen=4)
    trainer.step()
    trainer.kept.append(trainer.evaluate().detach())


def _last_two_graphs(trainer: Trainer, _: int) -> None:
    trainer.step()
    trainer.kept = [trainer.evaluate(), *trainer.kept][:2]


def _a_mean_of_outputs(trainer: Trainer, number: int) -> None:
    trainer.step()
    before = torch.zeros(300, 64) if number == 0 else trainer.kept
    trainer.kept = 0.9 * before + 0.1 * trainer.evaluate().detach()


def _a_cache_by_length(trainer: Trainer, number: int) -> None:
    if number == 0:
        trainer.kept = {}
    trainer.step()
    trainer.kept.setdefault(number % 2, torch.ones(300, 64))


def _the_first_two_outputs(trainer: Trainer, number: int) -> None:
    output = trainer.step()
    if number < 2:
        trainer.kept.append(output.detach())


def _the_first_two_outputs_and_each_loss(trainer: Trainer, number: int) -> None:
    """Tensors become more, but not by what the first steps keep: as prompts of a generation and its tokens."""
    output = trainer.step().detach()
    trainer.kept.extend([output, output.mean()] if number < 2 else [output.mean()])


def _longer_inputs(trainer: Trainer, number: int) -> None:
    trainer.step(torch.randn(64 + 32 * number, 64))


def _an_average_of_weights(trainer: Trainer, number: int) -> None:
    trainer.step()
    before = [0.0] * 4 if number == 0 else trainer.kept
    trainer.kept = [0.9 * one + weight.detach() for one, weight in zip(before, trainer.model.parameters(), strict=True)]


LEAKS = (
    *(outputs_with_their_graphs, outputs_without_graphs, losses_whose_graphs_keep_all, a_sum_whose_graph_keeps_all),
    *(copies_of_outputs, outputs_of_the_step, batches, outputs_after_the_peak),
)
HEALTHY = (
    *(_double_buffer, _batches_prepared_ahead, _last_outputs, _last_two_graphs, _a_mean_of_outputs),
    *(_a_cache_by_length, _the_first_two_outputs, _the_first_two_outputs_and_each_loss, _longer_inputs),
    _an_average_of_weights,
)


@pytest.fixture(autouse=True)
def no_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests has more objects than a program, and other tests run beside it."""
    monkeypatch.setattr(census, "BUDGET_NS", 10**10)


def trained(body: Body, directory: Path, steps: int = STEPS) -> Rank:
    def program() -> Trainer:
        trainer = Trainer()
        for number in range(steps):
            body(trainer, number)
        return trainer

    return fly(program, directory)


def leaks_of(rank: Rank) -> list[Finding]:
    return [finding for finding in find_findings(rank) if finding.grows]


@pytest.mark.parametrize("body", LEAKS, ids=lambda body: body.__name__)
def test_what_every_step_keeps_is_found_before_and_after_the_optimizer(body: Body, tmp_path: Path) -> None:
    (found,) = forked(lambda: leaks_of(trained(body, tmp_path / "run.ledger")))
    assert found.title.startswith("Every step keeps")
    is_after = body not in (outputs_of_the_step,)
    assert ("steps 2 to 3" if is_after else "steps 1 to 2") in found.evidence
    assert "test_kept_steps.py" in found.title


@pytest.mark.parametrize(
    ("body", "module", "action"),
    [
        (outputs_of_the_step, "in 2 (Linear)", "detach()"),
        (outputs_without_graphs, "in 2 (Linear)", "keep fewer tensors of each step"),
        (outputs_with_their_graphs, " (", "detach()"),
        (copies_of_outputs, "most of it outside modules", "detach()"),
        (losses_whose_graphs_keep_all, " (", "loss.item()"),
    ],
)
def test_the_advice_suits_what_is_kept(body: Body, module: str, action: str, tmp_path: Path) -> None:
    (found,) = forked(lambda: leaks_of(trained(body, tmp_path / "run.ledger")))
    assert module in found.evidence
    assert action in found.action
    others = {"detach()", "loss.item()"} - {action}
    assert not any(other in found.action for other in others)
    assert ("detach" in found.advice) is (body is not outputs_without_graphs)
    assert "maxlen" in found.advice


@pytest.mark.parametrize(
    ("body", "place", "holder"),
    [
        (outputs_with_their_graphs, "in trainer.kept", "trainer.kept (list, attribute of Trainer) keeps"),
        (copies_of_outputs, "in trainer.kept", "trainer.kept (list, attribute of Trainer) keeps"),
        (losses_whose_graphs_keep_all, "in trainer.kept", "every step also keeps a scalar"),
        (a_sum_whose_graph_keeps_all, "for the autograd graph of trainer.kept", "trainer.kept (tensor, attribute of"),
    ],
)
def test_the_object_that_keeps_them_is_named(body: Body, place: str, holder: str, tmp_path: Path) -> None:
    """After as many steps as a second census needs."""
    (found,) = forked(lambda: leaks_of(trained(body, tmp_path / "run.ledger", 80)))
    assert f" more {place}, the largest part" in found.title
    assert holder in found.advice
    assert ("detach() trainer.kept" in found.action) is (body is a_sum_whose_graph_keeps_all)
    of_losses = "keep numbers or detached tensors in trainer.kept"
    assert (found.action == of_losses) is (body is losses_whose_graphs_keep_all)


@pytest.mark.parametrize("body", HEALTHY, ids=lambda body: body.__name__.removeprefix("_"))
def test_what_is_bounded_is_no_leak(body: Body, tmp_path: Path) -> None:
    assert forked(lambda: leaks_of(trained(body, tmp_path / "run.ledger"))) == []


def test_without_later_steps_what_is_kept_after_a_step_can_be_the_next_batch(tmp_path: Path) -> None:
    assert forked(lambda: leaks_of(trained(copies_of_outputs, tmp_path / "run.ledger", steps=5))) == []


@pytest.mark.parametrize(("rises", "is_leak"), [(True, True), (False, False)])
def test_on_a_gpu_the_counters_of_later_steps_decide(rises: bool, is_leak: bool, tmp_path: Path) -> None:
    """The blocks of a CPU program, with an allocator's counters beside them."""

    def found() -> list[Finding]:
        rank = trained(copies_of_outputs, tmp_path / "run.ledger")
        names = ("blocks", "spans", "stacks", "modules", "segments", "counters", "names")
        steps = range(1, STEPS + 1)
        counters = {
            "device_idx": [-1] * STEPS,
            "step": list(steps),
            "allocated_bytes": [10**6 + (131_072 * step if rises else 0) for step in steps],
            **{name: [None] * STEPS for name in ("peak_allocated_bytes", "blocks", "host_bytes")},
        }
        tables = {name: rank.table(name) for name in names} | {"step_memory": pa.table(counters)}
        kept = KeptRank(rank.number, rank.directory, replace(rank.manifest, kept_blocks=None), tables=tables)
        return leaks_of(kept)

    assert bool(forked(found)) is is_leak
