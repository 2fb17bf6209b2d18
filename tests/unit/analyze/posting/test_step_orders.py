"""The allocations of a step are found in another step by order: with the same sizes, or those of another batch."""

from __future__ import annotations

import numpy as np
import pytest
from folders import RECORDINGS

from gpuledger.analyze.posting.late.step_orders import StepMatch, match_step

KIB, MIB = 1 << 10, 1 << 20
STEP = [MIB, MIB, MIB, 4, 4 * MIB, 4 * KIB, MIB, 4 * MIB, 4 * KIB, 8 * MIB]
"""Input, activations, loss, gradients of weights and biases."""
WEIGHTS = {4, 4 * MIB, 4 * KIB, 8 * MIB}

LEAST_KNOWN_FRAC = 0.8
"""Share of the bytes. Workspaces of reductions and convolutions can have any size, and are seldom alive later."""

COMPILED = 114
"""Allocations of the compiled model's forward. Those of backward are among the compiler's own trials."""


def match(sizes: list[int], reference: list[int], *, is_whole: bool) -> StepMatch:
    """Match steps of which every allocation has another owner."""
    return match_step(sizes, reference, range(len(reference)), is_whole=is_whole)


def of_batch(scale: int) -> list[int]:
    return [size if size in WEIGHTS else size * scale for size in STEP]


@pytest.mark.parametrize("scale", [1, 3, 4, 9000])
@pytest.mark.parametrize("count", [len(STEP), 6])
def test_another_batch_has_the_same_order(scale: int, count: int) -> None:
    """With 4, activations get the size of a weight."""
    found = match(of_batch(scale)[:count], STEP, is_whole=count == len(STEP))
    assert (found.places, found.is_sure) == (list(range(count)), True)


def test_one_size_alone_can_be_a_coincidence() -> None:
    found = match([9 * MIB] * 3, STEP, is_whole=False)
    assert (found.places, found.is_sure) == ([0, 1, 2], False)


def test_sizes_that_are_all_different_show_nothing() -> None:
    assert match([301, 499, 702, 1100, 1309], [3, 5, 7, 11, 13], is_whole=True).places == [-1] * 5


def test_a_larger_batch_that_fails_after_allocations_of_its_own_keeps_its_order() -> None:
    """A larger loss needs buffers that the recorded step did not need."""
    larger = of_batch(9000)[:8]
    found = match([*larger[:3], 512, 2560, *larger[3:]], STEP, is_whole=False)
    assert found.places[:3] == [0, 1, 2]
    assert found.places[5:] == [3, 4, 5, 6, 7]
    assert found.is_sure
    whole = [*of_batch(9000)[:3], 512, 2560, *of_batch(9000)[3:]]
    assert match(whole, STEP, is_whole=False).places == [0, 1, 2, -1, -1, *range(3, len(STEP))]


def test_what_one_step_alone_begins_with_does_not_hide_another_batch() -> None:
    """As the last buffers of an update that the recorded step begins with."""
    larger, before = of_batch(9000)[:9], [8 * MIB, 4 * MIB, 4 * MIB]
    assert match(larger, [*before, *STEP], is_whole=False).places == list(range(3, 12))
    assert match([*before, *larger], STEP, is_whole=False).places[3:] == list(range(9))


def test_a_compiler_that_tries_its_choices_out_does_not_hide_the_step() -> None:
    """It compiles for a larger batch in the failing step, and what it tries then is in one place."""
    with np.load(RECORDINGS / "batches" / "steps.npz") as tables:
        (small, of_small), (large, of_large) = tables["mlp-both.small"], tables["mlp-both.large"]
    in_forward, trials, failed_at = 40, [77 * MIB, 78 * MIB, 512] * 50, 100
    sizes = [*large[:in_forward], *trials, *large[in_forward:failed_at]]
    found = match_step(sizes, small.tolist(), of_small.tolist(), is_whole=False)
    places = np.array([*found.places[:in_forward], *found.places[in_forward + len(trials) :]])
    assert found.is_sure
    assert set(found.places[in_forward : in_forward + len(trials)]) == {-1}
    assert (places >= 0).mean() > 0.95
    assert (of_small[places[places >= 0]] == of_large[:failed_at][places >= 0]).all()


def test_a_whole_step_of_another_length_and_another_batch_is_not_matched() -> None:
    assert match([one * 3 for one in STEP[:6]], STEP, is_whole=True).places == [-1] * 6


def test_allocations_more_or_fewer_do_not_move_the_others() -> None:
    more = [*STEP[:3], 77, 78, *STEP[3:]]
    assert match(more, STEP, is_whole=True).places == [0, 1, 2, -1, -1, *range(3, len(STEP))]
    fewer = [*STEP[:3], *STEP[5:]]
    assert match(fewer, STEP, is_whole=True).places == [0, 1, 2, 5, 6, 7, 8, 9]


def test_where_several_positions_are_possible_their_owners_must_agree() -> None:
    """One of three allocations of the same size is not there."""
    fewer = [*STEP[:2], *STEP[3:]]
    assert match(fewer, STEP, is_whole=True).places == [-1, -1, 3, 4, 5, 6, 7, 8, 9]
    one_owner = ["layer"] * 3 + [str(number) for number in range(3, len(STEP))]
    assert match_step(fewer, STEP, one_owner, is_whole=True).places == [0, 1, 3, 4, 5, 6, 7, 8, 9]


def test_a_size_can_stay_and_become_another_one() -> None:
    """As a gradient of a weight, and an activation of its size."""
    step = [4 * MIB] * 3 + [MIB, 4, 4 * MIB, MIB, 4 * MIB, 4 * MIB, 4 * MIB]
    larger = [28 * MIB] * 3 + [7 * MIB, 4, 28 * MIB, 7 * MIB, 4 * MIB, 28 * MIB, 4 * MIB]
    found = match(larger, step, is_whole=False)
    assert (found.places, found.is_sure) == (list(range(10)), True)


def test_many_allocations_of_its_own_in_one_place_do_not_hide_the_others() -> None:
    """The mean of more than 2^31 numbers has a buffer and a semaphore for each part."""
    step = [MIB] * 26 + [4, 128, 4, 4] + [MIB] * 6
    larger = [9000 * MIB] * 26 + [4, *[8948, 4] * 8, 4] + [9000 * MIB] * 2
    found = match_step(larger, step, [*range(30), *["loss"] * 6], is_whole=False)
    assert found.is_sure
    assert found.places[:26] == list(range(26))
    assert found.places[-2:] == [30, 31]


def recorded_batches() -> list[str]:
    with np.load(RECORDINGS / "batches" / "steps.npz") as tables:
        return sorted({name.rpartition(".")[0] for name in tables.files})


@pytest.mark.parametrize("kind", recorded_batches())
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 1.0])
def test_the_beginning_of_a_large_step_has_the_modules_of_a_small_one(kind: str, share: float) -> None:
    """As recorded on an H200. A step can fail anywhere; all that it has allocated until then is compared."""
    with np.load(RECORDINGS / "batches" / "steps.npz") as tables:
        (small, of_small), (large, of_large) = tables[f"{kind}.small"], tables[f"{kind}.large"]
    if kind.endswith("compiled"):
        large = large[:COMPILED]
    count = round(share * large.size)
    found = match_step(large[:count].tolist(), small.tolist(), of_small.tolist(), is_whole=False)
    places = np.array(found.places)
    known = places >= 0
    assert found.is_sure
    assert (of_small[places[known]] == of_large[:count][known]).all()
    assert large[:count][known].sum() >= LEAST_KNOWN_FRAC * large[:count].sum()


@pytest.mark.parametrize(
    "sizes",
    [
        [9 * MIB] * 8,  # blocks of one size, as a cache or an evaluation allocates them
        [117 * MIB] * 3 + [4] + [117 * MIB] * 5,
        [3 * MIB, 5 * MIB, 7 * MIB, 11, 13, 17],
    ],
)
def test_other_code_is_not_matched(sizes: list[int]) -> None:
    assert match(sizes, STEP, is_whole=False).places == [-1] * len(sizes)


def test_nothing_is_matched_with_nothing() -> None:
    assert match([], STEP, is_whole=False).places == []
    assert match([1, 2, 3, 4, 5], [], is_whole=False).places == [-1] * 5
