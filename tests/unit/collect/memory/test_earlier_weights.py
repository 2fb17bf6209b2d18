"""Weights and buffers that a module had before its first call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded import record_own
from torch import nn

import gpuledger
from gpuledger.analyze.overview.peak_facts import PeakFacts

pytestmark = pytest.mark.torch

SINGLE, DOUBLE, HALF = 8 * 4 * 4, 8 * 4 * 8, 8 * 4 * 2
"""Bytes of the layer's weight in three types."""


class Layer(nn.Linear):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__(8, 4, bias=False)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype)) * self.scale


def model() -> nn.Sequential:
    return nn.Sequential(Layer())


def overwritten() -> nn.Module:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        return model().double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def assigned() -> nn.Module:
    made = model()
    made.load_state_dict({"0.weight": torch.ones(4, 8), "0.scale": torch.ones(4)}, assign=True)
    return made


def replaced() -> nn.Module:
    made = model()
    made[0].weight = nn.Parameter(torch.ones(4, 8))
    return made


def filled() -> nn.Module:
    with torch.device("meta"):
        made = model()
    made.to_empty(device="cpu")
    nn.init.zeros_(made.get_parameter("0.weight"))
    return made.half()


WAYS: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "converted": (lambda: model().double(), [SINGLE, DOUBLE]),
    "converted twice": (lambda: model().double().half(), [SINGLE, DOUBLE, HALF]),
    "overwritten": (overwritten, [SINGLE, DOUBLE]),
    "assigned": (assigned, [SINGLE, SINGLE]),
    "replaced": (replaced, [SINGLE, SINGLE]),
    "from meta": (filled, [SINGLE, HALF]),
    "a copy": (lambda: copy.deepcopy(model()).double(), [SINGLE, SINGLE, DOUBLE]),
}


@pytest.mark.parametrize("way", WAYS)
def test_weights_that_the_setup_replaces_are_weights_of_their_module(way: str) -> None:
    """A module that was freed has no path. What it had has the name of its class."""
    build, sizes = WAYS[way]

    def program(_: object) -> object:
        made = build()
        with torch.no_grad():
            made(torch.ones(2, 8))
        return made

    run = record_own(program)
    weights = run.of("weight")
    assert [one.bytes for one in weights] == sizes
    names = ["0.weight"] * len(sizes)
    if way == "a copy":
        names[0] = "Layer.weight"
    assert [one.name for one in weights] == names
    assert {one.name for one in run.of("buffer")} == ({"0.scale", "Layer.scale"} if way == "a copy" else {"0.scale"})


def test_tied_weights_are_of_the_first_module_that_has_them() -> None:
    def program(_: object) -> object:
        made = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
        made[1].weight = made[0].weight
        with torch.no_grad():
            made(torch.ones(2, 8))
        return made

    assert [one.name for one in record_own(program).of("weight")] == ["0.weight", "1.weight"]


def test_what_would_be_saved_counts_no_weights_that_the_setup_replaced(tmp_path: Path) -> None:
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording, torch.no_grad():
        made = model().half()
        made(torch.ones(2, 8))
    facts = PeakFacts(recording.run().rank(), -1)
    weights = facts.of("weight") & (facts.module_id >= 0)
    assert sorted(facts.lives.requested_bytes[weights].tolist()) == [HALF, SINGLE]
    assert facts.lives.requested_bytes[weights & facts.outlasts_setup].tolist() == [HALF]
