"""A page of tables without scripts: one file with its style, and a policy that forbids scripts and network access."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from gpuledger._version import __version__
from gpuledger.report.base.markup import element, html_text


def static_page(title: str, *parts: str) -> str:
    """Return the text of an HTML file; ``parts`` are markup, ``title`` is plain text."""
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    footer = f"Made by gpuledger {__version__}. GiB is 2<sup>30</sup> bytes. Nothing here is fetched from a network."
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{html_text(title)} · gpuledger</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"{element('p', 'gpuledger', class_='brand')}\n{chr(10).join(parts)}\n"
        f"{element('footer', footer)}\n</main>\n</body>\n</html>\n"
    )


@cache
def _style() -> str:
    return files("gpuledger.report").joinpath("assets", "static.css").read_text(encoding="utf-8")
