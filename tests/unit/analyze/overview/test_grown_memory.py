"""Memory that grows after the recorded steps comes before what lowers the peak of one of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flown import fly, forked
from torch import nn

from gpuledger.analyze.memory.growth import Growth
from gpuledger.analyze.overview import grown_memory
from gpuledger.analyze.overview.finding import Finding
from gpuledger.analyze.overview.findings import find_findings
from gpuledger.model.flight_facts import Holder
from gpuledger.report.text.first_screen import _replayed

GROWTH = Growth(
    rank=0, device_idx=0, step_bytes=4 << 20, since_step=1, last_step=301, grown_bytes=1200 << 20, limit_bytes=80 << 30,
    steps_left=900, holder=Holder(kind="list", name="curve", length=30, more=8, content="tensor"),
)  # fmt: skip


def found_with(growth: Growth, monkeypatch: pytest.MonkeyPatch, device_idx: int = 0) -> Finding | None:
    monkeypatch.setattr(grown_memory, "find_growth", lambda _: (growth,))
    facts: Any = SimpleNamespace(rank=None, device_idx=device_idx)
    return grown_memory.grown_memory(facts)


@pytest.mark.parametrize(
    ("holder", "action"),
    [
        (GROWTH.holder, "keep fewer elements in curve, or move them to the CPU"),
        (Holder(kind="list", name="curve", content="graph"), "keep numbers or detached tensors in curve"),
        (Holder(kind="graph", name="total"), "detach() total in each step"),
        (Holder(kind="Tensor", name="states", path="agent.states", content="data"), "limit the size of agent.states"),
        (None, "free what grows"),
    ],
)
def test_the_action_depends_on_what_keeps_the_memory(
    holder: Holder | None, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_with(replace(GROWTH, holder=holder), monkeypatch)
    assert found is not None
    assert (found.action, found.saving_bytes, found.grows) == (action, 1200 << 20, True)
    assert found.title.startswith("Memory grows by 4.0 MiB per step")


def test_what_has_a_limit_or_grows_elsewhere_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_with(replace(GROWTH, steps_until_full=20), monkeypatch) is None
    assert found_with(GROWTH, monkeypatch, device_idx=1) is None


def _trained_with_evaluations() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters())
    predictions = []
    for number in range(120):
        optimizer.zero_grad()
        model(torch.randn(128, 64)).square().mean().backward()
        optimizer.step()
        if number % 8 == 7:  # no recorded step has one
            predictions.append(model(torch.randn(4096, 64)).detach())
    return predictions


@pytest.mark.torch
def test_what_evaluations_keep_comes_before_changes_of_a_step(tmp_path: Path) -> None:
    findings = forked(lambda: find_findings(fly(_trained_with_evaluations, tmp_path / "run.ledger")))
    device: Any = SimpleNamespace(findings=findings)
    first, *others = _replayed(device)
    assert first.action == "keep fewer elements in predictions"
    assert others
    assert not any(one.grows for one in others)
