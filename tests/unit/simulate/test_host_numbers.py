"""Random numbers of the CPU are those of a run, although the weights of a simulated model are not drawn."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch.utils import _python_dispatch

from gpuledger.analyze.allocator.allocator import CachingAllocator
from gpuledger.collect.adapter import torch_private
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


@pytest.fixture(params=[True, False], ids=["", "without_disable_current_modes"])
def _modes_of_a_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with this torch, and with one that cannot disable the modes of a thread."""
    if not request.param:
        monkeypatch.delattr(_python_dispatch, "_disable_current_modes")
        assert torch_private.find("_disable_current_modes") is None


@pytest.mark.usefixtures("_modes_of_a_thread")
@pytest.mark.parametrize("make", [two_models, initialized, seeded_again, kept_state, in_between])
def test_numbers_are_those_of_a_run(make: Callable[[], None]) -> None:
    torch.manual_seed(3)
    make()
    wanted = drawn()
    with simulated():
        torch.manual_seed(3)
        make()
        assert drawn() == wanted


@pytest.mark.usefixtures("_modes_of_a_thread")
def test_values_are_read_without_the_modes_of_the_program() -> None:
    with simulated():
        layer = nn.Linear(3, 2).to("cuda")
        assert layer.weight.detach().cpu().numpy().shape == (2, 3)
        assert torch.arange(3, device="cuda").tolist() == [0, 1, 2]


def test_what_is_lost_without_a_private_function_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch_private.capabilities()["_disable_current_modes"] is None
    monkeypatch.delattr(_python_dispatch, "_disable_current_modes")
    assert (
        torch_private.capabilities()["_disable_current_modes"] == torch_private.LOST_WITHOUT["_disable_current_modes"]
    )


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
