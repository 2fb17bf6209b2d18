"""A report in a browser, as the tests handle it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import ConsoleMessage, Error, Locator, Page, Request


PATIENCE_MS = 300_000
"""How long tests wait for the browser, whose own limit of 30 s is short for a busy machine."""


@dataclass
class Opened:
    """A report in a browser: its page, and everything it asked for or complained about."""

    page: Page
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what the page asks for and complains about."""

        def asks(request: Request) -> None:
            self.requests.append(request.url)

        def complains(message: ConsoleMessage) -> None:
            self.complaints.append(message.text)

        def fails(error: Error) -> None:
            self.complaints.append(str(error))

        self.page.on("request", asks)
        self.page.on("console", complains)
        self.page.on("pageerror", fails)
        yield
        self.page.remove_listener("request", asks)
        self.page.remove_listener("console", complains)
        self.page.remove_listener("pageerror", fails)

    def text(self, selector: str) -> str:
        """Return the shown text of one element."""
        return self.page.locator(selector).inner_text()

    def value(self, key: str) -> str:
        """Return the exact value that a GPU holds."""
        return self.page.locator(f'[data-card="{key}"] .card-value').get_attribute("data-value") or ""

    def follow(self, link: Locator) -> None:
        """Click a link of the page and wait until the report shows its address, which comes later than the click."""
        listen = "window.shown = new Promise((done) => addEventListener('hashchange', done, {once: true}))"
        self.page.evaluate(f"() => {{ {listen}; }}")
        link.click()
        self.page.evaluate("() => window.shown.then(() => null)")

    def follow_card(self, key: str) -> None:
        """Click a card of the header and wait until the report shows what it leads to."""
        self.follow(self.page.locator(f'[data-card="{key}"]'))

    def copied_by(self, button: str) -> str:
        """Click a button that copies, and return the clipboard's text once it has said so, which it does for a second.

        What it says is listened for before: a busy machine can take longer than a second to look.
        """
        self.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        says = "new MutationObserver(() => node.textContent.includes('Copied') && done())"
        listen = f"window.copied = new Promise((done) => {says}.observe(node, {{childList: true}}))"
        self.page.locator(button).evaluate(f"node => {{ {listen}; }}")
        self.page.click(button)
        self.page.evaluate("() => window.copied.then(() => null)")
        return str(self.page.evaluate("navigator.clipboard.readText()"))

    @property
    def state(self) -> str:
        """Return what the address says of the state."""
        return str(self.page.evaluate("location.hash"))
