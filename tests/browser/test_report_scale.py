"""A million blocks and ten thousand modules: the file stays small, the page has little to do, the peak is exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from opened import PATIENCE_MS
from synthetic import load_run

from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.view.view import build_view
from gpuledger.report.html.report_page import render_html

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, CDPSession, Page

pytestmark = pytest.mark.browser
FILE_BYTES = 1_500_000
ELEMENTS = 2_000
OPENING_BLOCKS, ZOOMING_BLOCKS = 5_500_000, 250_000
"""Blocks of the page's scripts that are executed: 3.9 million to open it, most of them to decode, 0.14 to zoom."""
OPENING_LAYOUTS, ZOOMING_LAYOUTS = 10, 2
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@dataclass(frozen=True)
class Work:
    """What the page has done so far: blocks of scripts since it was asked last, layouts since it was opened."""

    blocks: int
    layouts: int


def work_of(page: Page, session: CDPSession) -> Work:
    """Return what has been done once two more frames are drawn."""
    page.evaluate(FRAME)
    scripts = [
        one for one in session.send("Profiler.takePreciseCoverage")["result"] if one["url"] == page.url.split("#")[0]
    ]
    blocks = sum(part["count"] for one in scripts for each in one["functions"] for part in each["ranges"])
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return Work(blocks, metrics["LayoutCount"])


def test_a_million_blocks(browser: Browser, tmp_path: Path) -> None:
    run = load_run(tmp_path / "big.ledger", blocks=1_000_000, modules=10_000)
    place = tmp_path / "big.html"
    place.write_text(render_html(build_view(run)), encoding="utf-8")
    assert place.stat().st_size <= FILE_BYTES
    with browser.new_context(offline=True, viewport={"width": 1280, "height": 900}) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        session = context.new_cdp_session(page)
        session.send("Performance.enable")
        session.send("Profiler.enable")
        session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": True})
        page.goto(place.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=PATIENCE_MS)
        opening = work_of(page, session)
        assert 0 < opening.blocks <= OPENING_BLOCKS
        assert opening.layouts <= OPENING_LAYOUTS
        assert page.locator("*").count() <= ELEMENTS
        exact = page.locator('[data-card="recorded_peak_allocated_bytes"] .card-value').get_attribute("data-value")
        assert exact == f"{summarize(run.ranks[0]).recorded_peak_allocated_bytes:,} bytes"

        work_of(page, session)  # what the questions above took
        before = work_of(page, session)
        page.evaluate("location.hash = 'zoom=300000000,600000000'")
        zooming = work_of(page, session)
        assert 0 < zooming.blocks <= ZOOMING_BLOCKS
        assert zooming.layouts - before.layouts <= ZOOMING_LAYOUTS
        assert page.locator("*").count() <= ELEMENTS
