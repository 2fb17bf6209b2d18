"""All ranks in one picture: a bar for each rank, and one click shows a rank that has a view of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from opened import Opened

pytestmark = pytest.mark.browser


def test_many_ranks_have_a_bar_each_and_some_a_view(open_report: Callable[..., Opened]) -> None:
    opened = open_report(blocks=60, modules=6, ranks=12)
    bars = opened.page.locator("#rank-multiples .rank-bar")
    assert bars.count() == 12
    switches = opened.page.locator("#rank-multiples button")
    assert switches.count() == opened.page.locator("#ranks-body tr").count() == 8
    assert "Highest peak" in opened.text("#rank-entries")
    last = switches.last
    last.click()
    chosen = opened.page.locator('#rank-multiples [aria-pressed="true"]')
    assert chosen.count() == 1
    current = opened.page.locator('#ranks-body tr[aria-current="true"] th').inner_text()
    assert current.startswith(chosen.first.inner_text().replace(" !", "").strip())
