"""Figures in words: what a change is told as."""

from __future__ import annotations

import pytest

from gpuledger.report.base.quantities import signed_share


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (100, 112.5, "+12.5 %"),
        (100, 87.5, "-12.5 %"),
        (100_000, 100_001, "< +0.1 %"),
        (100_000, 99_999, "> -0.1 %"),
        (100, 100, "0.0 %"),
        (100, 999, "+899.0 %"),
        (100, 1_000, "×10"),
        (64.0, 2_505.3, "×39"),
        (1, 14_749, "×14,749"),
        (0, 5, "new"),
    ],
)
def test_a_change_is_a_share_until_it_is_many_times(before: float, after: float, words: str) -> None:
    assert signed_share(after - before, before) == words


def test_what_is_unknown_is_no_share() -> None:
    assert signed_share(None, 10) == "–"
    assert signed_share(1, None) == "–"
