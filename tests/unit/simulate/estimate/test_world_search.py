"""The search for the smallest number of ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from gpuledger.simulate.estimate.fit import FITS, TOO_LARGE
from gpuledger.simulate.estimate.world_search import (
    REFUSED,
    WorldSearch,
    WorldTrial,
    candidates,
    find_smallest,
)

pytestmark = pytest.mark.torch


def search(divided: int, whole: int, capacity: int, most: int, refused: frozenset[int] = frozenset()) -> WorldSearch:
    """Search for a program with ``divided`` bytes over all ranks and ``whole`` bytes on each."""

    def try_size(ranks: int) -> WorldTrial:
        if ranks in refused:
            return WorldTrial(ranks, REFUSED, why="cannot divide")
        size = whole + divided // ranks
        return WorldTrial(ranks, FITS if size <= capacity else TOO_LARGE, size)

    return find_smallest(try_size, most)


@pytest.mark.parametrize("divided", [1, 90, 100, 101, 350, 401, 799, 1601, 4000, 10_000, 102_399])
def test_it_is_the_smallest_of_all_candidates(divided: int) -> None:
    expected = next((size for size in candidates(1024) if divided // size <= 100), None)
    found = search(divided, 0, 100, 1024)
    assert found.smallest == expected
    assert len(found.trials) <= 18


def test_refused_numbers_are_passed_over() -> None:
    assert search(650, 0, 100, 8).smallest == 7
    assert search(650, 0, 100, 8, frozenset({7})).smallest == 8
    assert search(350, 0, 100, 8, frozenset({1, 2, 4, 8})).smallest is None, "only the doubled numbers are tried first"
    assert search(250, 0, 100, 8, frozenset({1, 4})).smallest == 3


def test_ranks_that_divide_nothing_end_the_search() -> None:
    found = search(0, 200, 100, 1024)
    assert found.smallest is None
    assert [trial.world_size for trial in found.trials] == [1, 2]
    assert found.why == "2 ranks need as much memory per rank as 1, so more ranks do not help"


def test_nothing_fits_up_to_a_limit() -> None:
    found = search(10_000, 0, 100, 12)
    assert (found.smallest, found.why) == (None, "no number of ranks up to 12 fits")
    assert [trial.world_size for trial in found.trials] == [1, 2, 4, 8]
    assert candidates(3) == (1, 2, 3)
    assert search(250, 0, 100, 3).smallest == 3, "the limit itself is tried"
