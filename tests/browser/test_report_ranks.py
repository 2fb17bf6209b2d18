"""All ranks in one picture: a bar for each rank, and one click shows a rank that has a view of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gpuledger.units import parse_bytes

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
    peaks = {
        bar.locator(".rank-name").inner_text().removesuffix(" !"): bar.locator(".number").inner_text()
        for bar in bars.all()
    }
    assert list(peaks) == [f"rank {number}" for number in range(12)]
    caption = opened.text("#ranks-caption")
    for size, rank in re.findall(r"(?:Highest|lowest) ([\d.]+ \w+) \((rank \d+)", caption):
        assert peaks[rank] == size
    least = min(peaks.values(), key=parse_bytes)
    assert f"lowest {least}" in caption
    assert "Click one of the 8 underlined ranks" in opened.text("#rank-key")
    assert opened.page.locator("#rank-colors .swatch").count() > 3
    last = switches.last
    last.click()
    chosen = opened.page.locator('#rank-multiples [aria-pressed="true"]')
    assert chosen.count() == 1
    current = opened.page.locator('#ranks-body tr[aria-current="true"] th').inner_text()
    assert current.startswith(chosen.locator(".rank-name").inner_text().replace(" !", "").strip())
