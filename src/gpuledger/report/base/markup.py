"""Escape names of a user's program for HTML, XML and Markdown."""

from __future__ import annotations

import html
import re

from gpuledger.report.base.terminal import printable

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$&<>@:-])")
_PLAIN = re.compile(r"[\w ./,%+:()=-]*", re.ASCII)


def html_text(text: str) -> str:
    """Return ``text`` for HTML or XML, inside an element or a quoted attribute; control characters are written out."""
    return html.escape(printable(text), quote=True)


def markdown_text(text: str) -> str:
    r"""Return ``text`` for a cell of a Markdown table: markup, mentions and links are escaped."""
    return _MARKDOWN.sub(r"\\\1", printable(text)).replace("://", ":\u200b//")


def markdown_code(text: str) -> str:
    """Return ``text`` as inline code. If something in it would end the code or the cell, return it escaped."""
    return f"`{text}`" if text and _PLAIN.fullmatch(text) else markdown_text(text)


def element(tag: str, *children: str, **attributes: str) -> str:
    """Return an element; ``children`` are markup, attributes are text and escaped. ``class_`` is class."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html_text(value)}"' for name, value in attributes.items()
    )
    return f"<{tag}{written}>{''.join(children)}</{tag}>"
