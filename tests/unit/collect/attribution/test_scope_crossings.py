"""Where backward goes from one scope to another: found by a walk once, and known again in the steps after."""

from __future__ import annotations

import random
from typing import Any

import pytest
from recorded import record_own, scopes_by_size

import gpuledger
from gpuledger.collect.attribution import scope_crossings, scope_tracker
from gpuledger.collect.attribution.scope_crossings import numbered_nodes
from gpuledger.collect.attribution.scopes import current_path

pytest.importorskip("torch")
import torch
from torch import nn

pytestmark = pytest.mark.torch


class Branches(nn.Module):
    """Modules in nested scopes; the size of each tensor tells the scope it was made in, and the step."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.tanh, self.seed = nn.Tanh(), seed
        self.expected: dict[int, str] = {}

    def forward(self, chosen: int) -> torch.Tensor:
        """Return the sum of all tensors but one of the last two: which, only the caller knows."""
        rng = random.Random(self.seed)
        losses: list[torch.Tensor] = []
        for name in ("a", "b", "c"):
            with gpuledger.scope(name):
                self._level(rng, losses, rng.randint(0, 2))
        return losses.pop(-1 - chosen) + sum(losses[:-1])

    def _level(self, rng: random.Random, losses: list[torch.Tensor], depth: int) -> None:
        size = 1000 + len(self.expected)
        self.expected[size] = current_path()
        losses.append(self.tanh(self.tanh(torch.ones(size, requires_grad=True)).sum()))
        if depth:
            with gpuledger.scope(rng.choice("xyz")):
                self._level(rng, losses, depth - 1)
        elif rng.random() < 0.5:
            losses[-1] = gpuledger.scope("decorated")(self.tanh)(losses[-1])


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of nodes of each graph that was walked."""
    seen: list[int] = []

    def counted(*given: Any) -> dict[int, Any]:
        found = numbered_nodes(*given)
        seen.append(len(found))
        return found

    monkeypatch.setattr(scope_tracker, "numbered_nodes", counted)
    return seen


def wrong_sizes(found: dict[int, set[str]], expected: dict[int, str]) -> dict[int, set[str]]:
    return {size: found[size] for size, path in expected.items() if size in found and found[size] != {path}}


@pytest.mark.parametrize("seed", range(6))
def test_the_graphs_of_steps_that_look_alike_are_walked_once(seed: int, walks: list[int]) -> None:
    model = Branches(seed)

    def program(recording: Any) -> None:
        for _ in range(5):
            model(0).backward()

    recorded = record_own(program)
    assert len(walks) == 1
    found = scopes_by_size(recorded, "backward")
    assert len(set(model.expected) & set(found)) >= len(model.expected) - 5
    assert wrong_sizes(found, model.expected) == {}


def test_a_graph_that_only_looks_like_the_one_before_is_walked_from_then_on(walks: list[int]) -> None:
    model = Branches(1)

    def program(recording: Any) -> None:
        for chosen in (0, 0, 1, 1, 0, 1):
            model(chosen).backward()

    recorded = record_own(program)
    assert len(walks) == 4  # the first, and those after the third, which was taken for the first
    each = len(model.expected) // 6
    after = {size: path for size, path in model.expected.items() if size >= 1000 + 3 * each}
    found = scopes_by_size(recorded, "backward")
    assert len(set(after) & set(found)) == 3 * (each - 1)
    assert wrong_sizes(found, after) == {}


def test_a_program_that_never_calls_backward_is_not_compared_with_all_its_past(
    walks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope_crossings, "CHANGES_COMPARED", 40)
    model, compared = Branches(2), []
    shape = scope_crossings._shape  # only a long run would show how much is compared

    def measured(state: Any, roots: list[Any]) -> tuple[Any, ...]:
        found = shape(state, roots)
        compared.append(len(found[2]))
        return found

    monkeypatch.setattr(scope_crossings, "_shape", measured)
    weight = torch.ones(1, requires_grad=True)

    def program(recording: Any) -> None:
        for _ in range(30):
            torch.autograd.grad(model(0) * weight, weight)

    record_own(program)
    assert max(compared) < 40 + max(compared[:1]) * 2
    assert len(compared) == 30
