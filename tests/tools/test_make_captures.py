"""README's captures: the commands that a block shows run, and the lines that its pattern names stay."""

from __future__ import annotations

from pathlib import Path

import make_captures
import pytest


def test_lines_that_match_replace_the_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    printed = {"one": "peak  2 GiB  \nother\n", "two --by x": "peak  3 GiB\n"}
    monkeypatch.setattr(make_captures, "run", lambda command, directory: printed[command])
    body = "$ one\nold output\n$ two --by x\nolder output\n"
    assert make_captures.captured(body, "^peak", tmp_path) == "$ one\npeak  2 GiB\n$ two --by x\npeak  3 GiB\n"


def test_every_block_of_output_in_the_readme_can_be_made_again() -> None:
    text = make_captures.README.read_text(encoding="utf-8")
    blocks = list(make_captures.CAPTURE.finditer(text))
    assert len(blocks) == text.count("```text")
    assert all(block["body"].startswith("$ gpuledger ") for block in blocks)


def test_pages_that_repeat_an_output_have_the_same_one() -> None:
    text = make_captures.README.read_text(encoding="utf-8")
    outputs = [make_captures.output_of(block["body"]) for block in make_captures.CAPTURE.finditer(text)]
    for page in make_captures.REPEATING:
        assert any(output in page.read_text(encoding="utf-8") for output in outputs if output)


def test_the_output_of_a_block_ends_at_its_second_command() -> None:
    assert make_captures.output_of("$ one\na\nb\n$ two\nc\n") == "a\nb\n"
