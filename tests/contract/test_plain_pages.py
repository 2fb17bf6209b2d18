"""Pages are in plain words: no word of the list, no long sentence, and an introduction of one or two sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from folders import ROOT
from plain_words import long_sentences, unplain_words

BUILT = ROOT / "docs" / "_build"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if BUILT not in page.parents),
]
README_MAX_LINES = 200
CHANGELOG_MAX_LINES = 240
"""Of the next release. Merge a line into the bullet of its feature, as CONTRIBUTING.md says."""
GLOSSARY_MAX_TERMS = 40
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def prose_of_page(page: Path) -> str:
    """Return a page's paragraphs, list items and table cells as plain sentences."""
    text = page.read_text(encoding="utf-8")
    fenced = re.sub(r"^[ \t]*```.*?^[ \t]*```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = []
    for line in LINK.sub(r"\1", fenced).splitlines():
        if re.match(r"\s*\|", line):  # each cell is a sentence of its own
            lines += ["", *(f"{cell.strip()}\n" for cell in re.split(r"(?<!\\)\|", line) if cell.strip(" -:"))]
        elif re.match(r"#|\s*(?:[-*]|\d+\.)\s", line):
            lines += ["", re.sub(r"^[#\s*-]+", "", line)]
            lines += [""] if line.startswith("#") else []
        else:
            lines.append(line)
    return "\n".join(lines).replace("**", "").replace("<br>", "\n\n")


def introduction(page: Path) -> str:
    """Return the text between the title and the first heading, block, table or list."""
    rest = page.read_text(encoding="utf-8").partition("\n")[2]
    rest = re.split(r"^(?:#|```|\||[-*] |\(|<!-- (?!/))", rest.strip(), maxsplit=1, flags=re.MULTILINE)[0]
    return " ".join(rest.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_in_plain_words(page: Path) -> None:
    prose = prose_of_page(page)
    assert [str(found) for found in unplain_words(prose)] == []
    assert long_sentences(prose) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_a_title_and_an_introduction(page: Path) -> None:
    assert re.match(r"# \S", page.read_text(encoding="utf-8"))
    assert len(introduction(page).split()) >= 5, "one or two sentences that say what the page is for"


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= README_MAX_LINES


def test_the_changelog_of_the_next_release_is_short() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0]
    assert 0 < len(unreleased.splitlines()) <= CHANGELOG_MAX_LINES


def test_the_glossary_is_short() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    terms = [line for line in lines if line.startswith("| ") and not line.startswith(("| term", "| ---"))]
    assert 0 < len(terms) <= GLOSSARY_MAX_TERMS


def test_unplain_text_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n| a | the bare step |\n\n- a card\n- " + "word " * 29 + ".\n", encoding="utf-8")
    prose = prose_of_page(page)
    assert [found.found for found in unplain_words(prose)] == ["card", "bare"]
    assert len(long_sentences(prose)) == 1
    assert introduction(page) == ""
