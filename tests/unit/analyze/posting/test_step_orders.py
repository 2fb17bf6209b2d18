"""The allocations of a step are found in another step by order: with the same sizes, or those of another batch."""

from __future__ import annotations

import pytest

from gpuledger.analyze.posting.late.step_orders import match_step

KIB, MIB = 1 << 10, 1 << 20
STEP = [MIB, MIB, MIB, 4, 4 * MIB, 4 * KIB, MIB, 4 * MIB, 4 * KIB, 8 * MIB]
"""Input, activations, loss, gradients of weights and biases."""
WEIGHTS = {4, 4 * MIB, 4 * KIB, 8 * MIB}


def of_batch(scale: int) -> list[int]:
    return [size if size in WEIGHTS else size * scale for size in STEP]


@pytest.mark.parametrize("scale", [1, 3, 4, 9000])
@pytest.mark.parametrize("count", [len(STEP), 6])
def test_another_batch_has_the_same_order(scale: int, count: int) -> None:
    """With 4, activations get the size of a weight."""
    assert match_step(of_batch(scale)[:count], STEP, is_whole=count == len(STEP)) == list(range(count))


def test_a_whole_step_of_another_length_and_another_batch_is_not_matched() -> None:
    assert set(match_step(of_batch(9000)[:4], STEP, is_whole=True)) <= {-1, *range(len(STEP))}
    assert match_step([one * 3 for one in STEP[:6]], STEP, is_whole=True) == [-1] * 6


def test_allocations_more_or_fewer_do_not_move_the_others() -> None:
    more = [*STEP[:3], 77, 78, *STEP[3:]]
    assert match_step(more, STEP, is_whole=True) == [0, 1, 2, -1, -1, *range(3, len(STEP))]
    fewer = STEP[:2] + STEP[4:]
    assert match_step(fewer, STEP, is_whole=True) == [0, 1, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "sizes",
    [
        [9 * MIB] * 8,  # blocks of one size, as a cache or an evaluation allocates them
        [9 * MIB],
        [117 * MIB] * 3 + [4] + [117 * MIB] * 5,
        [3, 5, 7, 11, 13, 17],
    ],
)
def test_other_code_is_not_matched(sizes: list[int]) -> None:
    assert match_step(sizes, STEP, is_whole=False) == [-1] * len(sizes)


def test_nothing_is_matched_with_nothing() -> None:
    assert match_step([], STEP, is_whole=False) == []
    assert match_step([1, 2, 3, 4, 5], [], is_whole=False) == [-1] * 5
