"""Weights and buffers that a module had before its first call."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import record_own
from torch import nn

import gpuledger
from gpuledger.analyze.overview.peak_facts import PeakFacts
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.model.accounts import Identity

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
COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "copied": copy.deepcopy,
    "unpickled": lambda made: pickle.loads(pickle.dumps(made)),
    "loaded": lambda made: loaded(made),
}


def loaded(made: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


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


@pytest.mark.parametrize("is_converted", [False, True])
@pytest.mark.parametrize("way", COPIES)
def test_weights_of_a_copy_that_was_never_called_are_weights_of_its_class(way: str, is_converted: bool) -> None:
    """As of a checkpoint with a whole module, of which the program takes the weights only."""

    def program(_: object) -> object:
        made = model()
        other = COPIES[way](made)
        if is_converted:
            other.double()
        made.load_state_dict(other.state_dict())
        del other
        with torch.no_grad():
            made(torch.ones(2, 8))
        return made

    weights = [(one.name, one.bytes) for one in record_own(program).of("weight")]
    of_copy = [("Layer.weight", SINGLE), *([("Layer.weight", DOUBLE)] if is_converted else [])]
    assert weights == [("0.weight", SINGLE), *of_copy]


def test_a_conversion_that_changes_nothing_is_seen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a framework that moves the model to its device again in each step."""
    kinds: list[Identity] = []
    rows_at = TensorObservations.rows_at

    def counted(self: TensorObservations, found: Sequence[Identity], places: Any) -> Any:
        kinds.extend(found)
        return rows_at(self, found, places)

    monkeypatch.setattr(TensorObservations, "rows_at", counted)

    with gpuledger.record(out=tmp_path / "run", devices="cpu"):
        made = Layer()
        kinds.clear()
        made.float()
        assert len(kinds) == 2
        made.double()
        assert len(kinds) == 2 + 4


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
