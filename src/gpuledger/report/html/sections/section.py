"""The parts that a section of the report consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gpuledger.report.base.markup import element, html_text
from gpuledger.report.html.definitions import Definition

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from gpuledger.analyze.samples.series import SampleLine
    from gpuledger.analyze.view.device_view import DeviceView
    from gpuledger.analyze.view.view import RunView
    from gpuledger.analyze.view.watched_card import WatchedCard


@dataclass(frozen=True)
class Page:
    """Data that the sections of one page share.

    ``power`` are the samples of power by rank and device; ``categories`` and ``phases`` are the positions of each in
    the page's lists.
    """

    view: RunView
    power: Mapping[tuple[int, int], SampleLine]
    categories: dict[str, int]
    phases: dict[str, int]


DeviceData = Callable[["DeviceView", Page], dict[str, Any]]
CardData = Callable[["WatchedCard", Page], dict[str, Any]]


@dataclass(frozen=True)
class Section:
    """One section of the page.

    Attributes:
        name: The section's element is ``NAME-section``; its script registers its drawing function under this name.
        heading: Text of the heading.
        scripts: Files of the drawing code, in loading order.
        data: Returns a device's keys in the payload's ``views``; None if the section needs none of its own.
        card_data: The same for a GPU that was only watched; None leaves the section out of such a GPU's page.
        help: Definitions of its terms, shown as tips on elements with ``data-define`` and at the end of the page.
        body: Markup below the heading; None is one empty element with the name as id.
        tools: Markup beside the heading.
        is_hidden: Whether it is hidden until its script shows it.
        frame: The whole markup of a section without a heading.
    """

    name: str
    heading: str = ""
    scripts: tuple[Traversable, ...] = ()
    data: DeviceData | None = None
    card_data: CardData | None = None
    help: Mapping[str, Definition] = field(default_factory=dict)
    body: str | None = None
    tools: str = ""
    is_hidden: bool = False
    frame: str = ""

    @property
    def markup(self) -> str:
        """Return the section's element."""
        if self.frame:
            return self.frame
        head = element("h2", html_text(self.heading)) if self.heading else ""
        if self.tools:
            head = f'<div class="section-head">\n{head}\n{self.tools}\n</div>'
        body = element("div", id=self.name) if self.body is None else self.body
        hidden = " hidden" if self.is_hidden else ""
        lines = [f'<section id="{self.name}-section"{hidden}>', *filter(None, (head, body)), "</section>"]
        return "\n".join(lines)


def script(name: str) -> Traversable:
    """Return a script of the report."""
    return files("gpuledger.report").joinpath("assets", "js", name)


def column(title: str, kind: str = "", term: str = "") -> str:
    """Return the head of a column; ``kind`` is its class, ``term`` is the term that its tip defines."""
    text = element("dfn", html_text(title), tabindex="0", data_define=term) if term else html_text(title)
    return element("th", text, scope="col", class_=f"column-{kind}") if kind else element("th", text, scope="col")


def table(body_id: str, columns: Sequence[str], *, kind: str = "ledger", frame_id: str = "") -> str:
    """Return an empty table, to be filled by a script."""
    head = element("thead", element("tr", *columns))
    frame = {"class_": "scroll", "id": frame_id} if frame_id else {"class_": "scroll"}
    return element("div", element("table", head, element("tbody", id=body_id), class_=kind), **frame)
