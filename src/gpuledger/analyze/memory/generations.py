"""Calls of a model that generate text token by token, with a cache of the tokens before or without one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

FEWEST_DECODES = 2
"""Number of single tokens for each longer input from which on the calls are those of a generation loop."""

MOST_PROPOSED, FEWEST_CHECKS = 16, 4
"""Most tokens that are checked in one call, with the one before them; fewest such calls for each longer input."""


def is_generation(calls: Sequence[Sequence[int]]) -> bool:
    """Return whether calls are those of a generation loop: several single tokens after each longer input of the rows.

    A classifier of words has single tokens too, but seldom directly after a longer text, and not several.

    Args:
        calls: First and last step of equal calls, their rows and their length, in order.
    """
    prefills = decodes = 0
    before = (0, 0)
    for first, last, rows, length in calls:
        if length > 1:
            prefills += last - first + 1
        elif length == 1 and before[1] > 1 and rows % max(before[0], 1) == 0:  # beams multiply the rows
            decodes += last - first + 1
        before = rows, length
    return decodes >= FEWEST_DECODES * prefills > 0


def checks_proposals(calls: Sequence[Sequence[int]]) -> bool:
    """Return whether calls are those of a model that checks the tokens which a smaller one proposes.

    These are several equal calls with a few tokens after each longer input of the same rows. How many of the tokens are
    kept is not known.

    Args:
        calls: As for :func:`is_generation`.
    """
    prefills = checks = 0
    for (_, _, rows_before, longer), (first, last, rows, length) in pairwise(calls):
        if 1 < length <= MOST_PROPOSED and length < longer and rows == rows_before:
            prefills += 1
            checks += last - first + 1
    return checks >= FEWEST_CHECKS * prefills > 0


def keeps_growing(calls: Sequence[Sequence[int]]) -> bool:
    """Return whether most calls have one token more than the call before: the same samples, generated without a cache.

    Args:
        calls: As for :func:`is_generation`.
    """
    longer = sum(rows == last and length == shorter + 1 for (*_, last, shorter), (*_, rows, length) in pairwise(calls))
    return 2 * longer >= sum(last - first + 1 for first, last, *_ in calls) > 1


def is_one_generation(calls: Sequence[Sequence[int]], since_step: int) -> bool:
    """Return whether the calls after a step only add tokens to one text: its cache becomes larger until the text ends.

    Args:
        calls: As for :func:`is_generation`.
        since_step: The step.
    """
    return is_generation(calls) and all(length == 1 for _, last, _, length in calls if last > since_step)
