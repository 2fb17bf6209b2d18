"""Headless Chromium, offline, and the reports it opens."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from opened import PATIENCE_MS, Opened
from playwright.sync_api import ViewportSize, sync_playwright
from synthetic import make_run

from gpuledger.analyze.view.view import build_view
from gpuledger.model.run import read_run
from gpuledger.report.html.report_page import render_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

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


@dataclass
class Chromium:
    """One Chromium for all tests of this folder that a worker has in a row: starting it takes over a second.

    It ends before a test of another folder begins: while it runs, so does Playwright's event loop in this thread, and
    ``asyncio.run`` refuses to be called.
    """

    ends: ExitStack = field(default_factory=ExitStack)
    pages: Pages | None = None

    def running(self) -> Pages:
        """Return the pages of the one that runs, after starting it where none does."""
        if self.pages is None:
            path = find_chromium()
            playwright = self.ends.enter_context(sync_playwright())
            browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS), timeout=PATIENCE_MS)
            self.ends.callback(browser.close)
            self.pages = Pages(browser)
        return self.pages

    def end(self) -> None:
        """End it, if it runs."""
        self.pages = None
        self.ends.close()


CHROMIUM = Chromium()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End Chromium behind the last test of this folder in a row."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        CHROMIUM.end()


def pytest_sessionfinish() -> None:
    """End Chromium where the tests were stopped at a failure."""
    CHROMIUM.end()


@pytest.fixture(scope="module")
def browser() -> Browser:
    return CHROMIUM.running().browser


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


@dataclass
class Pages:
    """Pages that tests use one after the other: a page of its own takes three times as long to open."""

    browser: Browser
    free: dict[tuple[bool, int], list[Page]] = field(default_factory=lambda: defaultdict(list))

    def take(self, *, dark: bool, width: int) -> Page:
        """Return an empty page that nobody uses."""
        if self.free[dark, width]:
            return self.free[dark, width].pop()
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        viewport = ViewportSize(width=width, height=900)
        page = self.browser.new_context(offline=True, viewport=viewport, color_scheme=scheme).new_page()
        page.set_default_timeout(PATIENCE_MS)
        return page

    def give_back(self, page: Page, *, dark: bool, width: int) -> None:
        """Make a page as it was."""
        page.goto("about:blank")
        page.mouse.move(0, 0)
        page.emulate_media(media="screen")
        page.context.clear_permissions()
        self.free[dark, width].append(page)


@pytest.fixture(scope="module")
def pages() -> Pages:
    return CHROMIUM.running()


@pytest.fixture
def open_report(pages: Pages, report: Callable[..., Path]) -> Iterator[Callable[..., Opened]]:
    """Return an opener that waits for a ready page: ``open_report(state="#…", dark=True, width=400, **shape)``."""
    with ExitStack() as ends:

        def open_one(
            state: str = "", dark: bool = False, width: int = 1280, ledger: Path | None = None, **shape: Any
        ) -> Opened:
            page = pages.take(dark=dark, width=width)
            ends.callback(pages.give_back, page, dark=dark, width=width)
            opened = Opened(page, (render(ledger) if ledger else report(**shape)).as_uri())
            ends.enter_context(opened.listening())
            page.goto(opened.address + state)
            page.wait_for_selector("html[data-ready]", state="attached", timeout=PATIENCE_MS)
            return opened

        yield open_one
