"""The page of a diff in a browser: one file, no complaint, bars to both sides, hostile names as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opened import PATIENCE_MS
from synthetic import load_run

from gpuledger.analyze.compare.diff import Diff, diff_runs
from gpuledger.report.html.diff_html import render_diff

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def diff(tmp_path_factory: pytest.TempPathFactory) -> Diff:
    place = tmp_path_factory.mktemp("runs")
    before = load_run(place / "before.ledger", blocks=400)
    return diff_runs(before, load_run(place / "after.ledger", blocks=400, seed=3, hostile_names=True))


@pytest.fixture
def page(browser: Browser, diff: Diff, tmp_path: Path) -> Page:
    """The page, opened offline and in the dark; what it asks for or complains of fails the test."""
    place = tmp_path / "diff.html"
    place.write_text(render_diff(diff, ("category", "module")), encoding="utf-8")
    context = browser.new_context(offline=True, color_scheme="dark", viewport={"width": 800, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    page.on("request", lambda request: said.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(place.as_uri())
    assert said == [place.as_uri()]
    return page


def test_every_change_has_a_bar_to_its_side(page: Page, diff: Diff) -> None:
    for number, word in enumerate(("category", "module")):
        table = page.locator("table").nth(number + 1)
        changes = diff.main.changes(word)
        assert table.locator("tbody tr").count() == len(changes) + 1
        bars = [
            [float(bar.get_attribute(name) or "nan") for name in ("x", "width")] for bar in table.locator("rect").all()
        ]
        assert len(bars) == len(changes)
        for (left, width), change in zip(bars, changes, strict=True):
            assert width < 0.1 or (left >= 120) is ((change.delta or 0) > 0)


def test_names_are_text_and_the_dark_is_dark(page: Page) -> None:
    assert page.locator("img, script").count() == 0
    assert "</script>" in page.locator("main").inner_text()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(19, 21, 24)"
