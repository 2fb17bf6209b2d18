"""Every block of code in the pages runs, in the order of its page, and prints what the page shows."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import doc_blocks
import pytest
from doc_blocks import Block, Desk, blocks_of, commands_of, fits, pages, shortened
from quick import quick_python

ALL = [block for page in pages() for block in blocks_of(page)]
ALWAYS_RECORDED = ("docs/quickstart.md",)
"""Pages whose `run` lines are run each time; the others find what another page has recorded."""


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the recordings of the pages are kept, for all workers of this run of the tests."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
    place.mkdir(exist_ok=True)
    return place


@pytest.mark.torch
@pytest.mark.parametrize("page", sorted({block.page for block in ALL if not block.needs}))
def test_the_blocks_of_a_page_do_what_it_says(
    page: str, kept: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    recordings = tmp_path_factory.mktemp("kept") if page in ALWAYS_RECORDED else kept
    desk = Desk(tmp_path, recordings, quick_python())
    commands = 0
    for block in ALL:
        if block.page == page and not block.needs:
            for done in desk.run(block):
                assert not done.complaint, f"{page}:{block.line}: {done.complaint}"
                commands += 1
    assert commands


def test_blocks_that_are_not_run_are_few_and_say_why() -> None:
    left_out = Counter(block.needs for block in ALL if block.needs)
    print(dict(left_out))
    assert set(left_out) <= set(doc_blocks.REASONS)
    assert left_out.total() <= len(ALL) / 6


def test_no_block_is_passed_over_by_its_form() -> None:
    for page in pages():
        fences = page.read_text(encoding="utf-8").splitlines()
        opened = [
            line for line in fences if line.startswith("```") and line[3:].split(" ")[0] in doc_blocks.RUN_LANGUAGES
        ]
        assert len(opened) == len(blocks_of(page)), page.name
        assert "```bash" not in fences
        assert "```py" not in fences


def test_output_is_compared_line_by_line_and_dots_stand_for_any() -> None:
    assert fits("a  b\n…\nz\n", "a b\nc\nd\nz\n")
    assert fits("a\n…\n", "a\n")
    assert not fits("a\n", "a\nb\n")
    assert not fits("a\n…\nz\n", "a\nb\n")
    assert shortened("a\nb\nc\n", 2) == "a\n…\n"


def test_commands_and_their_outputs_are_told_apart() -> None:
    block = Block("page.md", 1, "console", "$ one \\\n  more\nout\n$ two\n", "")
    assert commands_of(block) == [("one    more", "out\n"), ("two", None)]
