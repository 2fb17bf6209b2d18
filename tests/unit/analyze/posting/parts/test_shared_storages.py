"""Tensors of several modules in one storage: each module has its bytes, and what is in no tensor is of the block."""

from __future__ import annotations

import pytest
import torch
from recorded import Recorded, record_own
from torch import Tensor, nn

pytestmark = pytest.mark.torch


class Two(nn.Module):
    """Two layers with weights in one storage, from the given places on."""

    def __init__(self, places: tuple[int, int], elements: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        flat = torch.randn(elements)
        for layer, place in zip((self.one, self.two), places, strict=True):
            layer.weight = nn.Parameter(flat[place : place + 64 * 64].view(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the second layer."""
        return self.two(self.one(x))  # type: ignore[no-any-return]


def recorded(*places: int, elements: int) -> tuple[Recorded, list[tuple[str, str, int, int]]]:
    """Return a recording, and module, name, offset and floats of each part of a block."""

    def program(_: object) -> object:
        model = Two((places[0], places[1]), elements)
        model(torch.randn(4, 64)).sum().backward()
        return model

    run = record_own(program)
    names = {row["name_id"]: row["name"] for row in run.tables["names"]}
    return run, [
        (
            "" if row["module_id"] is None else run.paths[row["module_id"]],
            names.get(row["name_id"], ""),
            row["offset_bytes"] // 4,
            row["bytes"] // 4,
        )
        for row in run.tables["block_parts"]
    ]


def test_each_weight_in_a_flat_tensor_is_of_its_module() -> None:
    size = 64 * 64
    run, parts = recorded(100, size + 164, elements=2 * size + 264)
    assert parts == [
        ("Two", "", 0, 100),
        ("one", "one.weight", 100, size),
        ("Two", "", size + 100, 64),
        ("two", "two.weight", size + 164, size),
        ("Two", "", 2 * size + 164, 100),
    ]
    (whole,) = [block for block in run.of("weight") if block.bytes > 4 * size]
    assert (whole.module, whole.name) == ("Two", "")


@pytest.mark.parametrize(("place", "elements"), [(0, 64 * 64), (64, 65 * 64)])
def test_weights_that_overlap_are_not_divided(place: int, elements: int) -> None:
    run, parts = recorded(0, place, elements=elements)
    assert parts == []
    assert {block.module for block in run.of("weight") if block.kept} == {"Two"}
