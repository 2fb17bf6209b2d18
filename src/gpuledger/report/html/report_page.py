"""One self-contained HTML file: page, style, scripts, data, and a policy that forbids network access."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from gpuledger._version import __version__
from gpuledger.report.html.payload import build_payload, encode
from gpuledger.report.html.sections.registry import SECTIONS
from gpuledger.report.html.sections.section import Section, script

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from gpuledger.analyze.view.view import RunView

_COMMENTS = re.compile(r"\A//.*\n\n?|^[ ]*/\*\* .* \*/\n", re.MULTILINE)
"""The line that says what a file is, and those that say what a function does. They are of no use in a page."""
VENDORED_SCRIPTS = {"uPlot.iife.min.js": "LICENSE-uPlot", "d3-hierarchy.min.js": "LICENSE-d3-hierarchy"}
"""Vendored script -> its licence, which every report includes."""
VENDORED_STYLES = ("uPlot.min.css",)
BASE_SCRIPTS = tuple(
    script(name)
    for name in (
        "format.js",
        "currency.js",
        "decode.js",
        "ledger.js",
        "state.js",
        "dom.js",
        "tips.js",
        "theme.js",
        "sections.js",
    )
)
"""Scripts that the sections' scripts use, in order."""
LAST_SCRIPT = script("app.js")
"""Reads the data and starts the page."""


def render_html(view: RunView, sections: Sequence[Section] = SECTIONS) -> str:
    """Return the report as the text of one HTML file.

    Names are only in the base64 data, except for the title, which is escaped in the markup.

    Raises:
        EmptyRunError: no rank has a block or a sample of a GPU's memory.
        ValueError: two sections have the same key, or define the same term.
    """
    scripts = [*(vendored_script(name, licence) for name, licence in VENDORED_SCRIPTS.items()), own_script(sections)]
    style = "".join([*(asset(f"vendor/{name}") for name in VENDORED_STYLES), asset("report.css")])
    name = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in view.run.name)
    parts = {
        "POLICY": policy(scripts, style),
        "VERSION": __version__,
        "TITLE": html.escape(name),
        "STYLE": style,
        "SECTIONS": markup(sections),
        "DATA": encode(build_payload(view, sections)),
        "SCRIPTS": "\n".join(f"<script>{text}</script>" for text in scripts),
    }
    pieces = asset("page.html").split("@")
    return "".join(parts.get(piece, piece) if place % 2 else piece for place, piece in enumerate(pieces))


def markup(sections: Sequence[Section] = SECTIONS) -> str:
    """Return the elements of the sections, from top to bottom."""
    return "\n\n".join(section.markup for section in sections)


def script_files(sections: Sequence[Section] = SECTIONS) -> list[Traversable]:
    """Return the page's own scripts in order. They share one scope, and the last one starts the page."""
    return [*BASE_SCRIPTS, *(file for section in sections for file in section.scripts), LAST_SCRIPT]


def policy(scripts: list[str], style: str) -> str:
    """Return a content security policy that allows only these scripts and this style, and no network access."""
    allowed = " ".join(f"'{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def vendored_script(name: str, licence: str) -> str:
    """Return a vendored script with its licence at the start."""
    return f"/*\n{asset(f'vendor/{licence}')}\n*/\n{asset(f'vendor/{name}')}"


def own_script(sections: Sequence[Section] = SECTIONS) -> str:
    """Return the page's own scripts as one script with its own scope, without its comments."""
    joined = "\n".join(_COMMENTS.sub("", file.read_text(encoding="utf-8")) for file in script_files(sections))
    return f'(() => {{\n"use strict";\n{joined}\n}})();'


@cache
def asset(path: str) -> str:
    """Return the text of a file in ``assets``."""
    return files("gpuledger.report").joinpath("assets", *path.split("/")).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
