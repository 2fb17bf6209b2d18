"""A section that somebody adds is drawn, and explains its terms, as the others do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opened import PATIENCE_MS
from synthetic import load_run
from toy_section import toy_section

from gpuledger.analyze.view.view import build_view
from gpuledger.report.html.report_page import render_html
from gpuledger.report.html.sections.registry import SECTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


def test_a_toy_section_is_drawn(browser: Browser, tmp_path: Path) -> None:
    view = build_view(load_run(tmp_path / "run.ledger", blocks=100))
    place = tmp_path / "toy.html"
    place.write_text(render_html(view, (*SECTIONS, toy_section(tmp_path))), encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(place.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=PATIENCE_MS)
    assert page.locator("#toy-section h2").inner_text() == "Toy & play"
    assert page.locator("#toy").inner_text() == f"Toy blocks {view.highest.summary.peak_allocated_bytes}"
    page.locator("#toy dfn").hover()
    assert "what a toy holds" in page.locator("#tip").inner_text()
    assert complaints == []
    context.close()
