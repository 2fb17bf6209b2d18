"""Names of blocks, what makes them, and the pages with the blocks filled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKED = re.compile(r"(?P<begin><!-- measured: (?P<name>[^>]+?) -->\n).*?(?P<end><!-- /measured -->)", re.DOTALL)

Maker = Callable[[], list[str]]
BLOCKS: dict[str, Maker] = {}
FILES: dict[Path, Callable[[], str]] = {}
"""Whole files that are made of results."""


def block(name: str) -> Callable[[Maker], Maker]:
    """Register a function that returns the lines of a block."""

    def register(make: Maker) -> Maker:
        assert name not in BLOCKS, name
        BLOCKS[name] = make
        return make

    return register


def pages() -> list[Path]:
    """Return the pages in which blocks may stand."""
    built = ROOT / "docs" / "_build"
    found = [place for place in (ROOT / "docs").rglob("*.md") if built not in place.parents]
    return [ROOT / "README.md", *sorted(found)]


def names_in(text: str) -> list[str]:
    """Return the names of a page's blocks, in its order."""
    return [found["name"] for found in MARKED.finditer(text)]


def fill(text: str, makers: Mapping[str, Maker] = BLOCKS) -> str:
    """Return a page with every block made anew."""

    def made(found: re.Match[str]) -> str:
        if found["name"] not in makers:
            raise SystemExit(f"no function makes the block {found['name']!r}: see tools/pages")
        return found["begin"] + "\n".join(makers[found["name"]]()) + "\n" + found["end"]

    return MARKED.sub(made, text)


def wanted_of(place: Path) -> str:
    """Return the content that a page or file should have."""
    return FILES[place]() if place in FILES else fill(place.read_text(encoding="utf-8"))
