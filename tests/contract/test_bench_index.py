"""bench/README.md lists every script with its results and the pages that quote them, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from folders import BENCH, ROOT

PAGES = [ROOT / "README.md", *(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
ROW = re.compile(
    r"\| \[(?P<name>\w+\.py)\]\((?P<script>[^)]+)\) \| (?P<what>.+?) \| (?P<results>[^|]+) \| (?P<pages>.+) \|"
)
PLACE = re.compile(r"(?<!tests/)\bbench/[\w./*-]*[\w*]")


@dataclass(frozen=True)
class Row:
    """A line of the index."""

    script: Path
    results: tuple[Path, ...]
    pages: frozenset[Path]


def read_row(line: str) -> Row:
    found = ROW.fullmatch(line)
    assert found is not None, line
    script = BENCH / found["script"]
    assert script.name == found["name"]
    results: list[Path] = []
    for pattern in re.findall(r"`([^`]+)`", found["results"]):
        matching = sorted((script.parent / "results").glob(pattern))
        assert matching, f"{line}: no {pattern}"
        results += matching
    links = re.findall(r"\]\(([^)]+)\)", found["pages"])
    return Row(script, tuple(results), frozenset((BENCH / link).resolve() for link in links))


ROWS = [read_row(line) for line in (BENCH / "README.md").read_text(encoding="utf-8").splitlines() if ".py](" in line]


def test_every_script_and_every_result_has_one_place_in_the_index() -> None:
    scripts = {place for place in BENCH.glob("*/*.py") if place.parent.name != "lib"}
    assert [row.script for row in ROWS] == sorted({row.script for row in ROWS}, key=[row.script for row in ROWS].index)
    assert {row.script for row in ROWS} == scripts
    results = [result for row in ROWS for result in row.results]
    # The corpus has a target of its own in the Makefile.
    made = set(BENCH.glob("*/results/*/*")) - {BENCH / "harm" / "results" / "cpu" / "corpus.json"}
    assert len(results) == len(set(results))
    assert set(results) == made


def test_pages_that_quote_a_script_or_a_result_are_those_of_the_index() -> None:
    texts = {page.resolve(): page.read_text(encoding="utf-8") for page in PAGES}
    for row in ROWS:
        names = [re.escape(row.script.name), *(re.escape(result.name) for result in row.results)]
        quoting = {page for page, text in texts.items() if re.search(rf"(?<!\w)({'|'.join(names)})(?!\w)", text)}
        assert quoting == row.pages, row.script.name


def test_every_place_in_bench_that_a_page_or_a_docstring_names_is_there() -> None:
    naming = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "Makefile", *BENCH.rglob("*.py"), *(ROOT / "src").rglob("*.py")]
    for page in naming:
        for named in PLACE.findall(page.read_text(encoding="utf-8")):
            if "/results/" in named and page.suffix == ".py":
                there = (ROOT / named).parent.parent.parent.is_dir()  # a script may never have been run
            else:
                there = bool(list(ROOT.glob(named.rstrip("/")))) or named.endswith("results/cpu/corpus.json")
            assert there, f"{page.relative_to(ROOT)}: {named}"
