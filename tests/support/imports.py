"""Files of older formats as runs, and the views that must work on every one of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gpuledger.cli.main import main
from gpuledger.formats.readers import read_files
from gpuledger.model.imported import ImportedRun, write_imported
from gpuledger.model.run import Rank, Run

"""Samples: rows as the formats' own documents and tests give them, completed to whole files."""


def read(format_name: str, *paths: Path) -> ImportedRun:
    """Return what the files hold."""
    return read_files(format_name, paths, "imported", {})


def make(format_name: str, directory: Path, *paths: Path) -> Run:
    """Return the run made of the files, written below ``directory``."""
    return write_imported(read(format_name, *paths), directory / "imported.ledger")


def rows(rank: Rank, table: str = "blocks") -> list[dict[str, Any]]:
    """Return a table as rows; in blocks the ids of names and modules are words."""
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    paths = {row["module_id"]: row["path"] for row in rank.table("modules").to_pylist()}
    found: list[dict[str, Any]] = rank.table(table).to_pylist()
    if table == "blocks":
        for row in found:
            row["name"], row["module"] = names.get(row["name_id"], ""), paths.get(row["module_id"], "")
    return found


def words(run: Run, rank: int = 0) -> list[tuple[str, str, str, int]]:
    """Return name, category, module and allocated bytes of every block."""
    found = rows(run.rank(rank))
    return [(row["name"], row["category"], row["module"], row["allocated_bytes"]) for row in found]


def show(path: Path, *more: str) -> dict[str, Any]:
    """Return what ``show --json`` says of a run or of a file."""
    result = CliRunner().invoke(main, ["show", str(path), "--json", *more])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def check_views(path: Path, directory: Path) -> None:
    """Assert that every view works on a run, or on a file of an older format."""
    page, picture, dump = directory / "page.html", directory / "bars.svg", directory / "dump.json"
    for words in (
        ["show", path],
        ["balance", path],
        ["group", path],
        ["diff", path, path],
        ["plot", path, "--kind", "two-bar", "-o", picture, "--force"],
        ["report", path, "-o", page, "--force"],
        ["export", path, "--to", "json", "-o", dump, "--force"],
    ):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, (words, result.output, result.exception)
    assert page.stat().st_size > 10_000
    assert picture.stat().st_size > 1_000
