"""Calls of a generation loop are told from those of other models whose inputs are numbers of words."""

from __future__ import annotations

import pytest

from gpuledger.analyze.memory.generations import (
    checks_proposals,
    is_generation,
    is_one_generation,
    keeps_growing,
)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([[1, 1, 2, 12], [2, 17, 2, 1]], True),
        ([[1, 1, 2, 12], [2, 17, 2, 1], [18, 18, 2, 7], [19, 30, 2, 1]], True),
        ([[1, 1, 1, 64], [2, 2, 1, 64], [3, 3, 1, 9], [4, 20, 1, 1]], True),  # a prompt in pieces
        ([[1, 1, 2, 12], [2, 20, 6, 1]], True),  # three beams
        ([[1, 9, 1, 1], [10, 17, 1, 2]], False),  # lines of text, the short ones first
        ([[1, 1, 1, 5], [2, 2, 1, 1], [3, 3, 1, 7], [4, 4, 1, 3], [5, 6, 1, 1]], False),
        ([[1, 1, 4, 12], [2, 20, 3, 1]], False),
        ([[1, 20, 256, 1]], False),  # numbers of users
        ([[1, 20, 256, 8]], False),
        ([], False),
    ],
)
def test_single_tokens_after_a_longer_input_are_a_generation(calls: list[list[int]], expected: bool) -> None:
    assert is_generation(calls) is expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([[number, number, 2, 11 + number] for number in range(1, 20)], True),
        ([[1, 1, 1, 12], [2, 2, 1, 13], [3, 3, 1, 14], [4, 4, 1, 13], [5, 5, 1, 14], [6, 6, 1, 15]], True),  # a draft
        ([[1, 20, 8, 64]], False),
        ([[1, 1, 8, 60], [2, 2, 8, 61], [3, 3, 8, 57], [4, 4, 8, 70], [5, 5, 8, 52]], False),  # batches of texts
        ([[1, 1, 8, 60], [2, 2, 7, 61], [3, 3, 6, 62]], False),
        ([[1, 1, 2, 12], [2, 17, 2, 1]], False),
        ([[1, 1, 2, 12]], False),
        ([], False),
    ],
)
def test_inputs_that_grow_by_one_token_are_the_same_samples(calls: list[list[int]], expected: bool) -> None:
    assert keeps_growing(calls) is expected


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([[1, 1, 1, 11], [2, 17, 1, 5]], True),
        ([[1, 1, 2, 40], [2, 9, 2, 5], [10, 10, 2, 31], [11, 20, 2, 5]], True),
        ([[1, 1, 1, 11], [2, 4, 1, 5]], False),  # too few to tell
        ([[1, 1, 1, 40], [2, 3, 1, 5], [4, 4, 1, 31], [5, 6, 1, 5]], False),
        ([[1, 1, 8, 60], [2, 20, 8, 32]], False),  # more than anybody proposes at once
        ([[1, 1, 8, 60], [2, 20, 7, 5]], False),  # other texts
        ([[1, 1, 2, 12], [2, 17, 2, 1]], False),
        ([[1, 20, 256, 5]], False),  # sessions of equal length
        ([[1, 1, 1, 5], [2, 20, 1, 9]], False),
        ([], False),
    ],
)
def test_a_few_tokens_again_and_again_after_a_longer_input_are_checks(calls: list[list[int]], expected: bool) -> None:
    assert checks_proposals(calls) is expected


@pytest.mark.parametrize(
    ("calls", "since_step", "expected"),
    [
        ([[1, 1, 4, 128], [2, 51, 4, 1]], 1, True),
        ([[1, 1, 4, 128], [2, 51, 4, 1]], 20, True),
        ([[1, 1, 2, 12], [2, 17, 2, 1], [18, 18, 2, 7], [19, 60, 2, 1]], 18, True),
        ([[1, 1, 2, 12], [2, 17, 2, 1], [18, 18, 2, 7], [19, 60, 2, 1]], 3, False),  # what the first one keeps
        ([[1, 60, 256, 8]], 1, False),
        ([], 1, False),
    ],
)
def test_the_cache_of_one_text_grows_until_it_ends(calls: list[list[int]], since_step: int, expected: bool) -> None:
    assert is_one_generation(calls, since_step) is expected
