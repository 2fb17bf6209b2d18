"""The table of functions of the older tools: its commands, options and tests exist, and its counts are right."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from folders import ROOT

import gpuledger
from gpuledger.cli.main import main
from gpuledger.formats.readers import FORMATS

PAGE = ROOT / "docs" / "coming-from" / "capabilities.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| `(gpuledger[^`]*)`(.*?) \| `(tests/[^`]+)` \|$")
FUNCTIONS = 64


class Function(NamedTuple):
    """One row of the table."""

    number: int
    what: str
    command: str
    note: str
    test: str


def functions() -> list[Function]:
    found = (ROW.match(line) for line in PAGE.read_text("utf-8").splitlines())
    return [Function(int(one[1]), *one.group(2, 3, 4, 5)) for one in found if one]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names of the test functions in a file."""
    return frozenset(node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef))


def test_the_table_has_every_function_once_and_its_counts_are_right() -> None:
    rows = functions()
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| \d", line)]
    assert len(lines) == len(rows) == FUNCTIONS
    assert [row.number for row in rows] == list(range(1, FUNCTIONS + 1))
    partly = sum("**partly**" in row.note for row in rows)
    introduction = " ".join(PAGE.read_text("utf-8").partition("\n## ")[0].split())
    assert f"list {FUNCTIONS} functions" in introduction
    assert f"covers {FUNCTIONS - partly} of them completely and {partly} partly" in introduction
    assert all(row.note.startswith("; **partly**: ") for row in rows if row.note)
    index = " ".join((PAGE.parent / "index.md").read_text("utf-8").split())
    assert f"[All {FUNCTIONS} functions]({PAGE.name})" in index
    assert f"{FUNCTIONS - partly} are covered completely and {partly} partly" in index


@pytest.mark.parametrize("row", functions(), ids=lambda row: str(row.number))
def test_the_test_of_a_function_exists(row: Function) -> None:
    path, _, name = row.test.partition("::")
    assert name.startswith("test_")
    assert name in names_in(ROOT / path), row.test


@pytest.mark.parametrize("row", functions(), ids=lambda row: str(row.number))
def test_the_command_of_a_function_exists(row: Function) -> None:
    first, *words = shlex.split(row.command)
    if first != "gpuledger":
        assert getattr(gpuledger, first.removeprefix("gpuledger."))
        return
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, row.command
        command = found
    options = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if word.startswith("-") and word != "--"} <= options
    if command.name == "import" and "ops" not in row.command:
        assert words[0] in FORMATS
