"""The peak is at the place that allocates there, also if the block belongs to a module that is not running."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gpuledger
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.view.view import build_view
from gpuledger.report.base.phrases import place_text

pytestmark = pytest.mark.torch


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16))


@torch.no_grad()
def follow(followed: nn.Module, follower: nn.Module) -> None:
    for new, old in zip(followed.parameters(), follower.parameters(), strict=True):
        old.data = 0.9 * old.data + 0.1 * new.data


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = network(), network().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x)
        follow(self.query, self.key)
        with torch.no_grad():
            key = self.key(x)
        return (query * key).sum(1).mean()


def train_pair() -> object:
    pair = Pair()
    optimizer = torch.optim.SGD(pair.query.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        pair(torch.ones(2, 64)).backward()
        optimizer.step()
    return pair, optimizer


def train_two_models() -> object:
    query = network()
    key = copy.deepcopy(query).requires_grad_(False)
    optimizer = torch.optim.SGD(query.parameters(), 0.1)
    for _ in range(3):
        x = torch.ones(2, 64)
        found = query(x)
        follow(query, key)
        with torch.no_grad():
            wanted = key(x)
        optimizer.zero_grad()
        (found * wanted).sum(1).mean().backward()
        optimizer.step()
    return query, key, optimizer


@pytest.mark.parametrize(("train", "where"), [(train_pair, "forward of Pair"), (train_two_models, "forward")])
def test_an_update_of_another_model_is_at_its_own_line(train, where: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with gpuledger.record(out=tmp_path / "run", steps=(1, 2), devices="cpu") as recording:
        keep = train()
    del keep
    rank = recording.run().rank()
    instant = find_peak(rank)
    place = place_text(instant)
    line = follow.__wrapped__.__code__.co_firstlineno + 3  # type: ignore[attr-defined]
    assert place == f"in step {instant.step}, {where}, at test_place_of_the_peak.py:{line} follow"
    assert build_view(recording.run()).devices[0].breakdown.instant == instant
