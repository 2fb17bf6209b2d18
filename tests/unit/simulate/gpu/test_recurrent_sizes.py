"""Sizes of recurrent layers, compared with layers measured on an H200."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuledger.simulate.temporaries.recurrent_sizes import (
    GRU,
    LSTM,
    PERSISTENT,
    SMALL,
    STANDARD,
    TANH,
    RecurrentShape,
)

TABLE = Path(__file__).parents[3] / "data" / "h200" / "recurrent_layers.csv"
"""Written by bench/estimate/recurrent_fit.py."""


class Measured(NamedTuple):
    """What a layer allocated on an H200, in bytes. Reserve and backward are 0 for inference."""

    shape: RecurrentShape
    forward_bytes: int
    reserve_bytes: int
    backward_bytes: int


@cache
def measured_layers() -> list[Measured]:
    with TABLE.open(encoding="utf-8") as file:
        rows = [list(map(int, row)) for row in csv.reader(file) if row[0].isdigit()]
    return [Measured(shape_of(row[:-3]), *row[-3:]) for row in rows]


def shape_of(row: list[int]) -> RecurrentShape:
    *sizes, drops, has_biases, longest, is_bfloat16, trains = row
    kind, item_bytes, directions, layers, rows, batch, inputs, hidden, projection = sizes
    return RecurrentShape(
        kind, item_bytes, directions, layers, rows, batch, inputs, hidden, projection,
        drops=bool(drops), has_biases=bool(has_biases), longest=longest,
        is_bfloat16=bool(is_bfloat16), trains=bool(trains),
    )  # fmt: skip


def test_the_reserve_is_equal_to_the_byte() -> None:
    trained = [layer for layer in measured_layers() if layer.reserve_bytes and not layer.shape.longest]
    assert [layer.shape.reserve_bytes for layer in trained] == [layer.reserve_bytes for layer in trained]
    assert len(trained) > 900


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [TANH, LSTM, GRU])
def test_forward_workspaces_are_those_that_were_measured(kind: int, packed: bool, directions: int) -> None:
    """Most others are smaller than computed: with long sequences, cuDNN keeps a layout of some steps only."""
    layers = [one for one in measured_layers() if one.shape.kind == kind and bool(one.shape.longest) == packed]
    layers = [one for one in layers if one.shape.directions == directions]
    errors = [one.shape.workspace_bytes() / one.forward_bytes - 1 for one in layers]
    assert sum(abs(error) <= 0.003 for error in errors) >= 0.8 * len(errors)
    assert min(errors) > -0.035
    assert max(errors) < 0.15


def test_backward_workspaces_are_those_that_were_measured() -> None:
    """Also where torch chooses another algorithm for backward."""
    layers = [one for one in measured_layers() if one.reserve_bytes]
    differ = [one for one in layers if one.shape.algorithm() != one.shape.algorithm(backward=True)]
    for chosen in (layers, differ):
        errors = [abs(one.shape.workspace_bytes(backward=True) / one.backward_bytes - 1) for one in chosen]
        assert len(errors) >= 10
        assert sum(error <= 0.003 for error in errors) >= 0.7 * len(errors)


LAYER = RecurrentShape(LSTM, 4, 1, 1, 64, 8, 32, 64)


@pytest.mark.parametrize(
    ("shape", "algorithm"),
    [
        (LAYER, SMALL),
        (replace(LAYER, hidden=192), SMALL),
        (replace(LAYER, hidden=193), STANDARD),
        (replace(LAYER, kind=TANH, hidden=384), SMALL),
        (replace(LAYER, longest=8), STANDARD),
        (replace(LAYER, projection=16), STANDARD),
        (replace(LAYER, item_bytes=8), STANDARD),
        (replace(LAYER, item_bytes=2, hidden=256, inputs=128), PERSISTENT),
        (replace(LAYER, item_bytes=2, hidden=256, inputs=128, is_bfloat16=True), STANDARD),
        (replace(LAYER, item_bytes=2, hidden=256, inputs=128, layers=2), STANDARD),
        (replace(LAYER, item_bytes=2, hidden=256, inputs=128, batch=12), STANDARD),
        (replace(LAYER, item_bytes=2, hidden=256, inputs=96), STANDARD),
        (replace(LAYER, kind=GRU, item_bytes=2, hidden=256, inputs=128), STANDARD),
        (replace(LAYER, kind=TANH, item_bytes=2, hidden=1024, inputs=128, batch=96), STANDARD),
    ],
)
def test_the_algorithm_is_the_one_that_torch_chooses(shape: RecurrentShape, algorithm: str) -> None:
    assert shape.algorithm() == algorithm


def test_backward_has_the_small_algorithm_for_smaller_layers_only() -> None:
    assert replace(LAYER, hidden=160).algorithm(backward=True) == STANDARD
    assert replace(LAYER, hidden=128).algorithm(backward=True) == SMALL


def test_a_wide_lstm_in_half_precision_has_the_layouts_of_small_sizes_in_forward_only() -> None:
    """Source: a recording of lstm-attended of bench/lib/blind_train.py on an H200 with torch 2.11 and cuDNN 9.19."""
    shape = RecurrentShape(LSTM, 2, 2, 1, rows=7168, batch=28, inputs=72, hidden=192)
    assert shape.workspace_bytes() == pytest.approx(101_389_792, rel=1e-5)
    assert shape.workspace_bytes(backward=True) == pytest.approx(57_414_112, rel=1e-5)


def test_dropout_masks_of_packed_sequences_include_the_padding() -> None:
    """A bit for each number of the padded output, here 40 sequences of up to 180 steps, in multiples of 32 bytes."""
    packed = RecurrentShape(GRU, 4, 1, 2, 5520, 40, 128, 320, drops=True, longest=180)
    without = replace(packed, drops=False)
    assert packed.reserve_bytes - without.reserve_bytes == 180 * 40 * 320 // 8
