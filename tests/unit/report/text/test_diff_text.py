"""Tables of a diff: rows within noise are summed, and all rows sum to the total."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gpuledger.analyze.compare.changes import Change
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.diff_text import time_table

MS = 1_000_000


def change(name: str, delta: float, noise: float | None) -> Change:
    return Change((name,), "", 100.0 * MS, (100.0 + delta) * MS, None if noise is None else noise * MS)


def lines(*changes: Change, rows: int = 15) -> list[str]:
    side = SimpleNamespace(classes={}, work_by="module")
    place: Any = SimpleNamespace(time_changes=lambda: changes, before=side, after=side)
    return time_table(place, rows).lines(Terminal(120))


def test_rows_within_noise_are_one_row() -> None:
    found = lines(change("a", 30, 5), change("b", -20, 40), change("c", -3, 40), change("d", 2, None))
    labels = [line.split("  ")[0] for line in found]
    assert labels == ["time by module", "a", "d", "… 2 within noise", "total change"]
    assert "-23" in found[3]
    assert "+9" in found[-1]


def test_a_table_of_noise_alone_has_its_sum() -> None:
    found = lines(change("a", 3, 5), change("b", -20, 40))
    assert [line.split("  ")[0] for line in found] == ["time by module", "… 2 within noise", "total change"]


def test_rows_that_are_not_shown_are_summed_apart_from_noise() -> None:
    found = lines(change("a", 30, 5), change("b", 20, 5), change("c", 3, 5), rows=1)
    assert [line.split("  ")[0] for line in found] == [
        "time by module",
        "a",
        "… 1 more",
        "… 1 within noise",
        "total change",
    ]
