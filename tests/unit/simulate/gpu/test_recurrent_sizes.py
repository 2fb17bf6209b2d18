"""Sizes of recurrent layers, compared with layers measured on an H200."""

from __future__ import annotations

import statistics
from dataclasses import replace

from gpuledger.simulate.gpu.recurrent_sizes import GRU, LSTM, RecurrentShape, measured_layers


def test_the_reserve_is_equal_to_the_byte() -> None:
    trained = [layer for layer in measured_layers() if layer.reserve_bytes]
    assert [layer.shape.reserve_bytes for layer in trained] == [layer.reserve_bytes for layer in trained]
    assert len(trained) > 400


def test_a_measured_layer_has_its_own_workspace() -> None:
    differ = [layer for layer in measured_layers() if layer.shape.workspace_bytes != layer.workspace_bytes]
    assert len(differ) < 0.02 * len(measured_layers())  # layers that differ in their dtype or in training alone


def test_a_layer_that_is_left_out_has_a_similar_workspace() -> None:
    layers = measured_layers()
    errors = []
    for layer in layers[::5]:
        workspace_bytes = layer.shape.workspace_from(one for one in layers if one is not layer)
        errors.append(abs(workspace_bytes / layer.workspace_bytes - 1))
    assert statistics.median(errors) < 0.01


def test_a_layer_of_another_direction_is_not_similar() -> None:
    one = RecurrentShape(LSTM, 4, 1, 1, 64, 8, 32, 32)
    both = RecurrentShape(LSTM, 4, 2, 1, 64, 8, 32, 32)
    assert one.distance(both) == float("inf")
    assert one.distance(one) == 0


def test_dropout_masks_of_packed_sequences_include_the_padding() -> None:
    """A bit for each number of the padded output, here 40 sequences of up to 180 steps, in multiples of 32 bytes."""
    packed = RecurrentShape(GRU, 4, 1, 2, 5520, 40, 128, 320, drops=True, longest=180)
    without = replace(packed, drops=False)
    assert packed.reserve_bytes - without.reserve_bytes == 180 * 40 * 320 // 8
