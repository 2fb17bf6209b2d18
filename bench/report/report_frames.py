"""Measures the report of a million blocks in a headless browser: file size, time until it is ready, frame times.

A synthetic run of ten thousand modules, with a time pass and readings of power, is rendered once. The page is opened
several times; in it, each action is done many times and timed from the change of the state to the second frame after
it, which is when it has been painted. Software rendering: a machine with a display is faster.

Usage: python bench/report/report_frames.py [--blocks 1000000] [--modules 10000]
           [--out bench/report/results/cpu/report_frames.json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment

from gpuledger.analyze.view.view import build_view
from gpuledger.report.html.report_page import render_html

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]

TARGETS = {"file_bytes": 2_000_000, "ready_ms": 1000, "frame_ms": 100}
OPENINGS, TIMES = 5, 20
ACTIONS = {
    "zoom": "(n) => `#zoom=${2e7 * n},${4e8 + 2e7 * n}`",
    "instant": "(n) => `#at=${(n % 20) * 90000}`",
    "search": "(n) => `#q=layer${n % 10}`",
    "enter a module": "(n) => `#node=${n % 40}`",
    "time, treemap": "(n) => (n % 2 ? '#metric=time&shape=treemap' : '#')",
    "sort by name": "(n) => (n % 2 ? '#sort=name' : '#')",
    "every account": "(n) => (n % 2 ? '#group=account' : '#')",
}
"""Name of an action -> the state it goes to the n-th time, as JavaScript."""
TIMED = """async ([action, times]) => {
  const next = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const state = (0, eval)(action);
  const spent = [];
  for (let n = 1; n <= times; n++) {
    await next();
    const begun = performance.now();
    location.hash = state(n);
    await next();
    spent.push(performance.now() - begun);
  }
  return spent;
}"""
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")


def figures(values: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and highest of milliseconds."""
    ordered = sorted(values)
    most = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return {"median": round(statistics.median(values), 1), "p95": round(most, 1), "max": round(ordered[-1], 1)}


def measure(browser: Browser, address: str) -> dict[str, Any]:
    """Return the milliseconds until the page is ready, and those of each action's frames."""
    ready, frames = [], {name: [] for name in ACTIONS}
    for opening in range(OPENINGS):
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
        ready.append(float(page.locator("html").get_attribute("data-ready") or "nan"))
        if opening == 0:
            frames = {name: frames_of(page, action) for name, action in ACTIONS.items()}
        page.close()
    return {"ready_ms": figures(ready), "frame_ms": {name: figures(values) for name, values in frames.items()}}


def frames_of(page: Page, action: str) -> list[float]:
    """Return the milliseconds of one action, done :data:`TIMES` times, after one that does not count."""
    spent: list[float] = page.evaluate(TIMED, [action, TIMES + 1])
    return spent[1:]


def main() -> None:
    """Measure, print a line a figure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "report" / "results" / "cpu" / "report_frames.json"
    )
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from synthetic_work import load_timed

    with tempfile.TemporaryDirectory() as temporary:
        run = load_timed(Path(temporary) / "big.ledger", blocks=asked.blocks, modules=asked.modules, spans=20_000)
        page = Path(temporary) / "big.html"
        page.write_text(render_html(build_view(run)), encoding="utf-8")
        file_bytes = page.stat().st_size
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
            found = measure(browser, page.as_uri())
            version = browser.version
            browser.close()
    results = {
        "blocks": asked.blocks,
        "modules": asked.modules,
        "environment": describe_environment("cpu"),
        "chromium": version,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
        "targets": TARGETS,
        "file_bytes": file_bytes,
        **found,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"file   {file_bytes / 1e6:8.2f} MB")
    for name, one in {"ready": results["ready_ms"], **results["frame_ms"]}.items():
        print(f"{name:16}{one['median']:8.1f} ms   p95 {one['p95']:.1f}   max {one['max']:.1f}")


if __name__ == "__main__":
    main()
