"""Which dimension of an input is the batch."""

from __future__ import annotations

import pytest

from gpuledger.collect.inputs.batch_dimension import Shape, batch_dimension, relates_rows


@pytest.mark.parametrize(
    ("shape", "outputs", "may_be_second", "batch_sizes", "dim"),
    [
        ((8, 30, 5), [(8, 10)], False, [], 0),
        ((8, 30, 5), [], False, [], 0),
        ((8, 30, 5), [], True, [], None),
        ((8, 30, 5), [(8, 30, 10)], False, [], 0),
        ((30, 8, 5), [(8, 10)], False, [], 1),  # the time does not remain
        ((30, 8, 5), [(30, 8, 10), (2, 8, 10)], True, [], 1),  # a recurrent layer also returns its last state
        ((30, 8, 5), [(30, 8, 10)], True, [], None),
        ((30, 8, 5), [(30, 8, 10)], True, [8, 64], 1),
        ((30, 8, 5), [(30, 8, 10)], True, [8, 30], None),
        ((8, 30, 5), [(8, 10)], False, [30], 0),  # parts of a DataLoader's batch, by chance as long as a sequence
        ((8, 30, 5), [(240, 10)], False, [], 0),  # flattened
        ((300, 5), [(1, 10)], False, [], None),  # all rows are summed
        ((8, 3, 4, 4), [(8, 10)], True, [], 0),
        ((8, 8, 5), [(8, 8, 10)], True, [], 0),
    ],
)
def test_the_batch_is_what_inputs_and_outputs_share(
    shape: Shape, outputs: list[Shape], may_be_second: bool, batch_sizes: list[int], dim: int | None
) -> None:
    found = batch_dimension(shape, outputs, is_whole=False, may_be_second=may_be_second, batch_sizes=batch_sizes)
    assert found == dim


@pytest.mark.parametrize(
    ("shape", "others", "whole", "relates"),
    [
        ((100, 5), [(100, 100)], [], True),
        ((100, 5), [(2, 700)], [(2, 700)], True),
        ((100, 5), [(700, 2)], [(700, 2)], True),
        ((100, 5), [(2, 700)], [], False),
        ((100, 5), [(100,), (100, 2)], [(100,), (100, 2)], False),
        ((2, 5), [(2, 700)], [(2, 700)], False),  # a batch of two texts
        ((8, 30, 5), [(30, 30)], [], False),  # a mask
        ((400, 32), [(3000,), (3000,)], [(3000,), (3000,)], True),  # where edges begin, and where they end
        ((400, 32), [(3000,), (500,)], [(3000,), (500,)], False),
        ((400, 32), [(400,), (400,)], [(400,), (400,)], False),
        ((400, 32), [(900,), (400,), (900,), (400,)], [(900,), (400,), (900,), (400,)], False),  # words, and offsets
    ],
)
def test_edges_relate_rows(shape: Shape, others: list[Shape], whole: list[Shape], relates: bool) -> None:
    assert relates_rows(shape, others, whole) is relates
