"""The compiled code of the report: its kernels, compile time and graph breaks are shown, and are text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from opened import PATIENCE_MS
from synthetic import load_run, make_run

from gpuledger.analyze.step.fusions import FusedKernel
from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import read_run
from gpuledger.report.html.report_page import render_html

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)>\u202e</script>"
NODES = tuple(f"node_{number}" for number in range(6))
KERNELS = (
    FusedKernel(
        "triton_poi_fused_gelu_0", ("h.0.mlp", ""), NODES, ("/a/model.py:7", "/b/model.py:7"), 3 << 20, 2e6, True
    ),
    FusedKernel(HOSTILE, (HOSTILE,), (), (HOSTILE,), 0, 1e6, False),
)


def opened(browser: Browser, place: Path, text: str) -> Page:
    place.write_text(text, encoding="utf-8")
    page = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(place.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached", timeout=PATIENCE_MS)
    return page


def test_kernels_and_graph_breaks_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    ledger = make_run(tmp_path / "run.ledger", blocks=50)
    manifest = ledger / "rank-0" / "manifest.json"
    compilation = {"graphs": 2, "seconds": 12.34, "breaks": {"call of print": 1, HOSTILE: 3}}
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "compilation": compilation}))
    view = build_view(read_run(ledger))
    vars(view.devices[0])["fusions"] = KERNELS
    page = opened(browser, tmp_path / "compiled.html", render_html(view))
    assert page.locator("#compiled-section").is_visible()
    assert page.locator("#compiled-summary").inner_text() == "Compile time: 12.3 s for 2 graphs of torch.compile."
    breaks = page.locator("#compiled-lines li").all_inner_texts()
    assert breaks[0].startswith("Graph break, 3 ×: <img src=x")
    assert breaks[1] == "Graph break, 1 ×: call of print"
    first, second = (row.locator("td").all_inner_texts() for row in page.locator("#compiled-body tr").all())
    assert first[0] == "triton_poi_fused_gelu_0"
    assert first[1:4] == ["h.0.mlp, (outside modules)", "node_0, node_1, node_2, node_3, … 2 more", "model.py:7"]
    assert first[4:] == ["3.0 MiB", "2.00 ms", "66.7 %"]
    assert second[0].startswith("<img src=x")
    assert second[4] == "–"
    assert page.locator("#compiled-section img").count() == 0
    assert "divided among them by the bytes" in page.locator("#compiled-note").inner_text()


def test_the_section_is_hidden_if_nothing_was_compiled(browser: Browser, tmp_path: Path) -> None:
    text = render_html(build_view(load_run(tmp_path / "run.ledger", blocks=50)))
    page = opened(browser, tmp_path / "plain.html", text)
    assert page.locator("#compiled-section").is_hidden()
