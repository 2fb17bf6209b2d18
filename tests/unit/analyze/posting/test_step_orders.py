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
    found = match_step(of_batch(scale)[:count], STEP, is_whole=count == len(STEP))
    assert (found.places, found.is_sure) == (list(range(count)), True)


def test_one_size_alone_can_be_a_coincidence() -> None:
    found = match_step([9 * MIB] * 3, STEP, is_whole=False)
    assert (found.places, found.is_sure) == ([0, 1, 2], False)


def test_sizes_that_are_all_different_show_nothing() -> None:
    assert not match_step([300, 500, 700, 1100, 1300], [3, 5, 7, 11, 13], is_whole=True).is_sure


def test_a_larger_batch_that_fails_after_allocations_of_its_own_keeps_its_order() -> None:
    """A larger loss needs buffers that the recorded step did not need."""
    larger = of_batch(9000)[:8]
    found = match_step([*larger[:3], 512, 2560, *larger[3:]], STEP, is_whole=False)
    assert found.places[:3] == [0, 1, 2]
    assert found.places[5:] == [3, 4, 5, 6, 7]
    assert found.is_sure
    whole = [*of_batch(9000)[:3], 512, 2560, *of_batch(9000)[3:]]
    assert match_step(whole, STEP, is_whole=False).places == [0, 1, 2, -1, -1, *range(3, len(STEP))]


@pytest.mark.parametrize("before", [[8 * MIB, 4 * MIB, 4 * MIB], [MIB, 8 * MIB]])
def test_what_one_step_alone_begins_with_does_not_hide_another_batch(before: list[int]) -> None:
    """As the last buffers of an update that the recorded step begins with."""
    larger, count = of_batch(9000)[:9], len(before)
    assert match_step(larger, [*before, *STEP], is_whole=False).places == list(range(count, count + 9))
    assert match_step([*before, *larger], STEP, is_whole=False).places[count:] == list(range(9))


def test_a_whole_step_of_another_length_and_another_batch_is_not_matched() -> None:
    assert match_step([one * 3 for one in STEP[:6]], STEP, is_whole=True).places == [-1] * 6


def test_allocations_more_or_fewer_do_not_move_the_others() -> None:
    more = [*STEP[:3], 77, 78, *STEP[3:]]
    assert match_step(more, STEP, is_whole=True).places == [0, 1, 2, -1, -1, *range(3, len(STEP))]
    fewer = STEP[:2] + STEP[4:]
    assert match_step(fewer, STEP, is_whole=True).places == [0, 1, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "sizes",
    [
        [9 * MIB] * 8,  # blocks of one size, as a cache or an evaluation allocates them
        [117 * MIB] * 3 + [4] + [117 * MIB] * 5,
        [3 * MIB, 5 * MIB, 7 * MIB, 11, 13, 17],
    ],
)
def test_other_code_is_not_matched(sizes: list[int]) -> None:
    assert match_step(sizes, STEP, is_whole=False).places == [-1] * len(sizes)


def test_nothing_is_matched_with_nothing() -> None:
    assert match_step([], STEP, is_whole=False).places == []
    assert match_step([1, 2, 3, 4, 5], [], is_whole=False).places == [-1] * 5
