"""Headless Chromium, offline, and the reports it opens."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from opened import Opened
from playwright.sync_api import sync_playwright
from synthetic import load_run

from gpuledger.report.data import gather
from gpuledger.report.html import render_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
MISSING = "no Chromium, the report's tests need one; install it with: sudo apt-get install chromium"


def find_chromium() -> str:
    """Return Chromium's path; on a CI machine it is installed where that needs no password."""
    found = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if found is None and os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium", "fonts-liberation"]):
            subprocess.run(["apt-get", "-qq", *command], check=True, capture_output=True)
        found = shutil.which(CHROMIUM_NAMES[0])
    return found or pytest.fail(MISSING)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield running
        running.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a maker of reports: the same shape is rendered once."""
    made: dict[str, Path] = {}

    def make(**shape: Any) -> Path:
        key = repr(sorted(shape.items()))
        if key not in made:
            directory = tmp_path_factory.mktemp("report")
            run = load_run(directory / "run.ledger", **shape)
            made[key] = directory / "run.html"
            made[key].write_text(render_html(gather(run, run.ranks)), encoding="utf-8")
        return made[key]

    return make


@pytest.fixture
def open_report(browser: Browser, report: Callable[..., Path]) -> Iterator[Callable[..., Opened]]:
    """Return an opener, ``open_report(state="#…", dark=True, width=400, **shape)``, that waits until the page is ready."""
    contexts = []

    def open_one(state: str = "", dark: bool = False, width: int = 1280, **shape: Any) -> Opened:
        context = browser.new_context(
            offline=True, viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        opened = Opened(page, report(**shape).as_uri())
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on("console", lambda message: opened.complaints.append(message.text))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.goto(opened.address + state)
        page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
        return opened

    yield open_one
    for context in contexts:
        context.close()
