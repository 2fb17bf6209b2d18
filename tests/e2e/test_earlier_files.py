"""Files that gpuledger wrote before its packages were rearranged (commit e09b475) are read, and figures are the same.

``tests/data/earlier`` has a recorded training on the CPU, an operator database with its workload, and a keyword file.
They were written by that commit's ``run``, ``ops capture``, ``ops measure`` and ``group --write-keywords``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from folders import DATA

from gpuledger.analyze.overview.summary import summarize
from gpuledger.cli.main import main
from gpuledger.model.schema.tables import TABLES
from gpuledger.services.runs import load

EARLIER = DATA / "earlier"
PEAK_BYTES = 107_664
"""The peak that ``show --json`` of e09b475 printed of this run."""


def ask(*words: Any) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a copy of the run, so that reading it cannot change the original."""
    return Path(shutil.copytree(EARLIER / "train.ledger", tmp_path / "train.ledger"))


def test_a_run_is_shown_and_its_report_is_written(run: Path, tmp_path: Path) -> None:
    document = json.loads(ask("show", run, "--json"))
    assert document["peak_allocated_bytes"] == PEAK_BYTES
    assert sum(account["bytes"] for account in document["breakdown"]) == PEAK_BYTES
    ask("report", run, "-o", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 100_000
    assert json.loads(ask("diff", run, run, "--json"))["before"] == json.loads(ask("diff", run, run, "--json"))["after"]


def test_a_journal_without_tables_is_built_into_them(run: Path) -> None:
    rank = run / "rank-0"
    for table in TABLES:
        shutil.rmtree(rank / table, ignore_errors=True)
    (rank / "manifest.json").unlink()
    assert summarize(load(run).rank()).peak_allocated_bytes == PEAK_BYTES


def test_a_keyword_file_groups_the_run(run: Path) -> None:
    found = json.loads(ask("group", run, "--keywords", EARLIER / "keywords.toml", "--json"))
    assert "Optimizer state" in json.dumps(found)


def test_an_operator_database_sums_its_workload(tmp_path: Path) -> None:
    database = shutil.copy(EARLIER / "operators.book", tmp_path / "operators.book")
    rows = json.loads(ask("ops", "query", "--database", database, "--json", "SELECT operator, status FROM measured"))
    assert {row["operator"] for row in rows} >= {"aten.addmm.default", "aten.relu.default"}
    assert {row["status"] for row in rows} == {"ok"}
    words = ("--database", database, "--gpu", "Intel(R) Xeon(R) Processor", "--json")
    (found,) = json.loads(ask("ops", "sum", EARLIER / "tiny.workload.json", *words))
    assert (found["workload"], found["busy_ns"]) == ("build-inference-2x16", pytest.approx(49_551.5))
