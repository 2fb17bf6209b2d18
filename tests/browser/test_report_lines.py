"""The source lines of the report: the flame graph can be entered and left, and the table has every line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from opened import Opened


pytestmark = pytest.mark.browser


def widths(opened: Opened) -> list[float]:
    found: list[float] = opened.page.evaluate(
        "[...document.querySelectorAll('#flame button')].map((box) => parseFloat(box.style.width))"
    )
    return found


def test_a_frame_can_be_enlarged_and_left(open_report: Callable[..., Opened]) -> None:
    opened = open_report()
    boxes = opened.page.locator("#flame button")
    assert boxes.first.inner_text() == "All allocations"
    assert opened.page.locator("#lines-body tr").count() > 0
    before = boxes.count()
    assert before > 2
    boxes.nth(1).click()
    assert widths(opened)[:2] == [100, 100]
    assert "·" in opened.page.locator("#flame-trail").inner_text()
    boxes.first.click()
    assert boxes.count() == before
