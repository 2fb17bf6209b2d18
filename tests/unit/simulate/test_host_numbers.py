"""Random numbers of the CPU are those of a run, although the weights of a simulated model are not drawn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

pytest.importorskip("torch")
import torch
from torch import nn

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.simulate import host_numbers
from gpuledger.simulate.catalogue import find_card
from gpuledger.simulate.gpu.card import in_place
from gpuledger.simulate.gpu.device import SimulatedDevice

pytestmark = pytest.mark.torch


def simulated() -> AbstractContextManager[object]:
    return in_place(SimulatedDevice(find_card("h200"), CachingAllocator()), lambda _sentence: None)


def drawn() -> list[int]:
    return torch.randint(1 << 30, (4,)).tolist()


def two_models() -> None:
    nn.Sequential(nn.Linear(1030, 1030), nn.Embedding(7, 3), nn.LSTM(5, 9), nn.Conv2d(3, 5, 3)).to(place())
    nn.TransformerEncoderLayer(24, 2, batch_first=True).to(place())


def place() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def initialized() -> None:
    layer = nn.Linear(300, 40)
    nn.init.orthogonal_(layer.weight)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.xavier_normal_(layer.weight)
    layer.bias.data.random_(3)


def seeded_again() -> None:
    nn.Linear(50, 50)
    torch.manual_seed(5)
    nn.Linear(20, 20)


def kept_state() -> None:
    nn.Linear(50, 50)
    state = torch.get_rng_state()
    nn.Linear(20, 20)
    drawn()
    torch.set_rng_state(state)


def in_between() -> None:
    nn.Linear(10, 10)
    torch.randperm(5)
    nn.Linear(10, 10)


@pytest.mark.parametrize("make", [two_models, initialized, seeded_again, kept_state, in_between])
def test_numbers_are_those_of_a_run(make: Callable[[], None]) -> None:
    torch.manual_seed(3)
    make()
    wanted = drawn()
    with simulated():
        torch.manual_seed(3)
        make()
        assert drawn() == wanted


def test_more_numbers_than_can_be_drawn_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_numbers, "_MOST_NUMBERS", 1000)
    torch.manual_seed(3)
    without = drawn()
    with simulated():
        torch.manual_seed(3)
        nn.Linear(100, 100)
        assert drawn() == without


def test_the_gpu_has_other_numbers() -> None:
    torch.manual_seed(3)
    wanted = drawn()
    with simulated():
        torch.manual_seed(3)
        torch.randn(100, device="cuda")
        assert drawn() == wanted
