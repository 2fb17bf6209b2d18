"""Trainings with a mixture of experts: the estimate's live tensors are those of a real execution on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch")
import torch
from live_tensors import live_tensors
from torch import nn
from torch.nn import functional

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak

pytestmark = pytest.mark.torch
TOKENS, WIDTH, EXPERTS, TOP = 256, 64, 4, 2
Route = Callable[["Experts", torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Experts(nn.Module):
    """Experts whose tokens are chosen by numbers of the batch, which an estimate knows."""

    def __init__(self, route: Route) -> None:
        super().__init__()
        self.route = route
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.shared = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
        scores = self.router(tokens).softmax(-1)
        chosen = prior.topk(TOP, dim=-1).indices
        return self.route(self, tokens, scores, chosen)


def by_mask(model: Experts, tokens: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(tokens)
    for number, expert in enumerate(model.experts):
        mine = (chosen == number).any(-1)
        made[mine] = made[mine] + expert(tokens[mine]) * scores[mine, number, None]
    return made


def by_index(model: Experts, tokens: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(tokens)
    for number, expert in enumerate(model.experts):
        rows, _ = torch.where(chosen == number)
        made.index_add_(0, rows, expert(tokens[rows]) * scores[rows, number, None])
    return made


def by_sorting(model: Experts, tokens: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=EXPERTS).tolist()
    parts = tokens[order // TOP].split(counts)
    done = torch.cat([expert(part) for expert, part in zip(model.experts, parts, strict=True)])
    weighted = done * scores.gather(1, chosen).flatten()[order][:, None]
    return torch.zeros_like(tokens).index_add(0, order // TOP, weighted)


def with_capacity(model: Experts, tokens: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    capacity = TOKENS * TOP // EXPERTS
    hot = functional.one_hot(chosen.flatten(), EXPERTS)
    places = (hot.cumsum(0) - 1).gather(1, chosen.flatten()[:, None]).squeeze(1)
    kept = places < capacity
    rows = torch.arange(TOKENS, device=tokens.device).repeat_interleave(TOP)[kept]
    slots = (chosen.flatten() * capacity + places)[kept]
    boxes = tokens.new_zeros(EXPERTS * capacity, WIDTH).index_copy(0, slots, tokens[rows])
    parts = boxes.view(EXPERTS, capacity, WIDTH).unbind(0)
    done = torch.cat([expert(part) for expert, part in zip(model.experts, parts, strict=True)])
    return torch.zeros_like(tokens).index_add(0, rows, done[slots] * scores.gather(1, chosen).flatten()[kept][:, None])


def with_shared(model: Experts, tokens: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return by_index(model, tokens, scores, chosen) + model.shared(tokens)


def with_balance(model: Experts, tokens: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    share = functional.one_hot(chosen, EXPERTS).sum(1).float().mean(0)
    return by_sorting(model, tokens, scores, chosen) + (share * scores.mean(0)).sum() * EXPERTS


def by_threshold(model: Experts, tokens: torch.Tensor, scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Leave out the tokens whose own numbers are low: how many are left depends on the batch."""
    rows = (tokens[:, 0] > 0.7).nonzero().squeeze(1)
    part = by_index(model, tokens[rows], scores[rows], chosen[rows])
    return torch.zeros_like(tokens).index_put((rows,), part)


def skewed(tokens: int) -> torch.Tensor:
    """Return a score of each token for each expert: the first expert gets all tokens, the last only a few."""
    return torch.rand(tokens, EXPERTS) + torch.tensor([2.0, 0.8, 0.4, 0.0])


def even(tokens: int) -> torch.Tensor:
    return torch.rand(tokens, EXPERTS)


ROUTES = [by_mask, by_index, by_sorting, with_capacity, with_shared, with_balance, by_threshold]


@pytest.mark.parametrize("draw", [even, skewed])
@pytest.mark.parametrize(
    "route", [by_mask, by_index, by_sorting, with_capacity, with_shared, with_balance, by_threshold]
)
def test_live_tensors_are_those_of_a_real_execution(route: Route, draw: Callable[[int], torch.Tensor]) -> None:
    torch.manual_seed(0)
    model = Experts(route)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)  # without counters on the CPU
    tokens, prior = torch.randn(TOKENS, WIDTH), draw(TOKENS)

    def step(tokens: torch.Tensor, prior: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(tokens, prior).square().mean().backward()
        optimizer.step()

    found = gpuledger.estimate(step, tokens, prior, steps=2)
    rank = found.run.rank(0)
    sizes = {one.category: one.bytes for one in break_down(rank, find_peak(rank), by=("category",)).accounts}
    with live_tensors() as counted:
        for tensor in (tokens, prior, *model.parameters()):
            counted.add(tensor)
        step(tokens, prior)
        step(tokens, prior)
    assert found.peak_allocated_bytes - sizes.get("workspace", 0) == counted.peak_bytes
