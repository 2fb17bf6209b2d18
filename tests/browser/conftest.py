"""Headless Chromium, offline, and the reports it opens."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from opened import Opened
from playwright.sync_api import sync_playwright
from synthetic import make_run

from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import read_run
from gpuledger.report.html.html import render_html

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


def render(ledger: Path) -> Path:
    """Return the report on a run, written beside it."""
    run = read_run(ledger)
    place = ledger.with_suffix(".html")
    place.write_text(render_html(build_view(run)), encoding="utf-8")
    return place


@pytest.fixture
def edit() -> Callable[[Path, str, object], None]:
    """Return a writer of one key of a manifest."""

    def write(path: Path, key: str, value: object) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))

    return write


@pytest.fixture(scope="module")
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
            made[key] = render(make_run(tmp_path_factory.mktemp("report") / "run.ledger", **shape))
        return made[key]

    return make


@pytest.fixture
def open_report(browser: Browser, report: Callable[..., Path]) -> Iterator[Callable[..., Opened]]:
    """Return an opener that waits for a ready page: ``open_report(state="#…", dark=True, width=400, **shape)``."""
    contexts = []

    def open_one(
        state: str = "", dark: bool = False, width: int = 1280, ledger: Path | None = None, **shape: Any
    ) -> Opened:
        context = browser.new_context(
            offline=True, viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        opened = Opened(page, (render(ledger) if ledger else report(**shape)).as_uri())
        page.on("request", lambda request: opened.requests.append(request.url))
        page.on("console", lambda message: opened.complaints.append(message.text))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.goto(opened.address + state)
        page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
        return opened

    yield open_one
    for context in contexts:
        context.close()
