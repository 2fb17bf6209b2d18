"""The sections of the page, from top to bottom, and the definitions of all their terms."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.report.html.definitions import Definition, define_categories
from gpuledger.report.html.sections import (
    about,
    balance,
    bars,
    cards,
    compiled,
    failures,
    findings,
    instant,
    lines,
    notes,
    ranks,
    timeline,
    windows,
)
from gpuledger.report.html.sections.section import Section

SECTIONS: tuple[Section, ...] = (
    cards.ALARM,
    cards.SECTION,
    ranks.SECTION,
    failures.SECTION,
    findings.SECTION,
    timeline.SECTION,
    instant.SECTION,
    lines.SECTION,
    bars.SECTION,
    compiled.SECTION,
    windows.SECTION,
    balance.SECTION,
    notes.SECTION,
    about.SECTION,
)


def definitions(sections: Sequence[Section] = SECTIONS) -> dict[str, Definition]:
    """Return the definition of every term of a page; categories are under ``category.NAME``.

    Raises:
        ValueError: two sections define the same term.
    """
    found = define_categories()
    for section in sections:
        if twice := found.keys() & section.help.keys():
            raise ValueError(f"section {section.name}: {', '.join(sorted(twice))}: already defined")
        found.update(section.help)
    return found
