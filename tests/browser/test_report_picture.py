"""The picture of the modules where there are many: areas stay full of what they hold, pointing leaves no trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from opened import Opened

pytestmark = pytest.mark.browser
SHAPE = {"blocks": 30_000, "modules": 3000}
COLOURED = """() => {
  const canvas = document.getElementById("structure");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let coloured = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]) > 24) coloured += 1;
  }
  return coloured / (canvas.width * canvas.height);
}"""
"""The share of the picture in the colour of a category: frames, ink and gaps are grey."""
PICTURE = "document.getElementById('structure').toDataURL()"


@pytest.fixture
def treemap(open_report: Callable[..., Opened]) -> Opened:
    return open_report(state="#shape=treemap", **SHAPE)


def test_thousands_of_frames_leave_room_for_what_they_hold(treemap: Opened) -> None:
    assert treemap.page.evaluate(COLOURED) > 0.4


def test_a_module_too_small_to_be_taken_apart_says_its_categories(treemap: Opened) -> None:
    treemap.page.locator("#structure").hover(position={"x": 200, "y": 200})
    said = treemap.text("#tip")
    assert "Layer" in said
    assert "weight" in said


def test_pointing_leaves_no_trace(treemap: Opened) -> None:
    before = treemap.page.evaluate(PICTURE)
    for x in (200, 420, 640):
        treemap.page.locator("#structure").hover(position={"x": x, "y": 200})
        assert treemap.page.evaluate(PICTURE) != before
    treemap.page.locator("#search").hover()
    assert treemap.page.evaluate(PICTURE) == before


def test_names_sort_as_numbers_are_read(open_report: Callable[..., Opened]) -> None:
    opened = open_report(state="#group=account&sort=category&rows=100", **SHAPE)
    categories = opened.page.locator("#table-body .column-category").all_inner_texts()
    assert categories == sorted(categories)
    assert opened.complaints == []
