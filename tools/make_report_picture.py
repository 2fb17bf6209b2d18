"""Draws docs/pictures/report.png: the report of three steps of GPT-2 small that were recorded on an H200.

The recording is the one that the tests hold; the page is opened in a headless Chromium and nothing is retouched.

Usage: python tools/make_report_picture.py [--out docs/pictures/report.png]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import read_run
from gpuledger.model.run_directory import write_json
from gpuledger.report.html.report_page import render_html

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "report.png"
STATE = "#axis=event"
"""By event: the first step's kernels are loaded for a second, and the steps after it would be slivers by time."""
WIDTH, HEIGHT = 1240, 1400


def write_report(directory: Path) -> Path:
    """Return the page of the recording, written below ``directory``."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from card_recordings import post_recording

    run_directory = post_recording("gpt2", directory).directory.parent
    write_json(run_directory / "manifest.json", {"schema_version": 1, "name": "gpt2"})
    run = read_run(run_directory)
    page = directory / "report.html"
    page.write_text(render_html(build_view(run)), encoding="utf-8")
    return page


def draw(page: Path, picture: Path) -> None:
    """Write what the browser shows of ``page``, from its head to the picture of the modules."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        opened.goto(page.as_uri() + STATE)
        opened.wait_for_selector("html[data-ready]", state="attached")
        box = opened.locator(".table-tools").bounding_box()
        bottom = HEIGHT if box is None else box["y"] - 8
        opened.screenshot(path=picture, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom})
        browser.close()


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=PICTURE)
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        draw(write_report(Path(directory)), asked.out)


if __name__ == "__main__":
    main()
