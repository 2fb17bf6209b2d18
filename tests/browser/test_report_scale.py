"""A million blocks and ten thousand modules: the file stays small, the page comes at once, the peak is exact."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from synthetic import load_run

from gpuledger.analyze.overview.summary import summarize
from gpuledger.analyze.view.view import build_view
from gpuledger.report.html.html import render_html

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
FILE_BYTES = 1_500_000
READY_MS = 1_000
FRAME_MS = 100
ATTEMPTS = 8
"""A machine that is busy with other tests is asked again."""


def test_a_million_blocks(browser: Browser, tmp_path: Path) -> None:
    run = load_run(tmp_path / "big.ledger", blocks=1_000_000, modules=10_000)
    text = render_html(build_view(run))
    place = tmp_path / "big.html"
    place.write_text(text, encoding="utf-8")
    assert place.stat().st_size <= FILE_BYTES
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    ready_ms, frame_ms = [], []
    for _ in range(ATTEMPTS):
        page = context.new_page()
        page.goto(place.as_uri())
        page.wait_for_selector("html[data-ready]", state="attached", timeout=30_000)
        ready_ms.append(int(page.locator("html").get_attribute("data-ready") or 0))
        exact = page.locator('[data-card="recorded_peak_allocated_bytes"] .card-value').get_attribute("data-value")
        assert exact == f"{summarize(run.ranks[0]).recorded_peak_allocated_bytes:,} bytes"
        started = time.perf_counter()
        page.evaluate("location.hash = 'zoom=300000000,600000000'")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        frame_ms.append((time.perf_counter() - started) * 1000)
        page.close()
        if min(ready_ms) <= READY_MS and min(frame_ms) <= FRAME_MS:
            break
    context.close()
    assert min(ready_ms) <= READY_MS
    assert min(frame_ms) <= FRAME_MS
