"""The report's map of segments at an out-of-memory error, in headless Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from opened import PATIENCE_MS
from synthetic import make_run

from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import read_run, write_table
from gpuledger.model.schema.tables import TABLES
from gpuledger.report.html.report_page import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MIB = 1 << 20
BASE = 0x7F00_0000_0000
BLOCKS = ((12, "allocated", "activation"), (4, "inactive", None), (8, "allocated", "weight"))
"""MiB, state and category of the blocks of a segment."""


def failed_run(place: Path) -> Path:
    """Return a run that ran out of memory with two segments, of which the second has half the size."""
    make_run(place, blocks=200)
    directory = read_run(place).ranks[0].directory
    segments: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for number, unit_bytes in enumerate((MIB, MIB // 2)):
        at = address = BASE + number * (1 << 30)
        for size, state, category in BLOCKS:
            sizes = {"allocated_bytes": size * unit_bytes, "requested_bytes": size * unit_bytes}
            blocks.append({**sizes, "segment_address": address, "address": at, "state": state, "category": category})
            at += size * unit_bytes
        segments.append({"address": address, "bytes": at - address, "stream": 0, "pool_id": 0})
    steps = [{"step": step, "t_ns": step, "allocated_bytes": step * MIB, "retries": 0} for step in range(804, 812)]
    for name, rows in (("failure_segments", segments), ("failure_blocks", blocks), ("step_memory", steps)):
        names = TABLES[name].column_names
        columns: dict[str, list[Any]] = {one: [row.get(one) for row in rows] for one in names}
        columns |= {one: [0] * len(rows) for one in ("failure_id", "device_idx") if one in names}
        columns |= {one: [False] * len(rows) for one in ("small", "expandable") if one in names}
        write_table(directory, pa.table(columns).select(names), name)
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["oom"] = [{"device_idx": 0, "tried_bytes": 5 * MIB, "failure_id": 0, "step": 812, "times": 1}]
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return place


def test_the_map_has_a_bar_for_each_segment_in_the_colors_of_the_legend(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.set_default_timeout(PATIENCE_MS)
    report = tmp_path / "oom.html"
    report.write_text(render_html(build_view(read_run(failed_run(tmp_path / "oom.ledger")))), encoding="utf-8")
    page.goto(report.as_uri())
    bars = page.locator(".memory-map .split").all()
    pieces = [[piece.bounding_box() for piece in bar.locator("span").all()] for bar in bars]
    widths = [[box["width"] for box in of_bar if box] for of_bar in pieces]
    assert sum(widths[0]) > 600
    assert [round(one / widths[0][0], 2) for one in widths[0]] == [1.0, 0.33, 0.67]
    assert [round(small / large, 2) for small, large in zip(widths[1], widths[0], strict=True)] == [0.5] * 3
    color = "node => getComputedStyle(node).backgroundColor"
    drawn = {piece.evaluate(color) for bar in bars for piece in bar.locator("span").all()}
    entries = page.locator("#failures .legend-entry").all()
    assert drawn == {entry.locator(".swatch").evaluate(color) for entry in entries}
    names = [entry.locator(".legend-name").inner_text() for entry in entries]
    assert names == ["activation", "weight", "free, too small"]
    page.close()


def test_a_long_setting_does_not_widen_a_narrow_page(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 420, "height": 800})
    page.set_default_timeout(PATIENCE_MS)
    report = tmp_path / "oom.html"
    report.write_text(render_html(build_view(read_run(failed_run(tmp_path / "oom.ledger")))), encoding="utf-8")
    page.goto(report.as_uri())
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in page.locator("#failures").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") == 420
    assert page.locator("#failures-section h2").inner_text() == "Out of memory"
    page.close()


def test_the_last_steps_are_a_table(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    report = tmp_path / "oom.html"
    report.write_text(render_html(build_view(read_run(failed_run(tmp_path / "oom.ledger")))), encoding="utf-8")
    page.goto(report.as_uri())
    rows = page.locator(".last-steps tr").all()
    assert [row.locator("th, td").all_inner_texts() for row in (rows[0], rows[-1])] == [
        ["step", "allocated, MiB", "retries"],
        ["811", "811.0", "0"],
    ]
    assert len(rows) == 6
