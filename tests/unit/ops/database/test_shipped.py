"""The measurements that come with gpuledger: where they come from, and when they are used."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from folders import DATA

from gpuledger.cli.main import main
from gpuledger.errors import InputError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database import shipped
from gpuledger.ops.database.contents import Contents, read_parquet, write_parquet
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.database.readable import ExportedDatabase
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.predict.choose import model_of, open_environment_records
from gpuledger.ops.workloads.workload import Use, Workload, to_json

SOURCES = ("operator_database.parquet", "operator_database_more.parquet")
COLUMNS = ("operator", "inputs", "flags", "card", "driver", "torch", "method", "time_median_ns", "energy_median_j")


def rows_of(path: Path) -> list[str]:
    """Return the measured rows; an operator can be in a database without a measurement."""
    rows = pq.read_table(path, columns=list(COLUMNS)).to_pylist()
    return [str(row) for row in rows if row["card"] is not None]


def test_they_are_those_of_the_committed_databases() -> None:
    kept = Path(shipped.__file__).parent / "measured" / shipped.FILE
    assert sorted(rows_of(kept)) == sorted(row for name in SOURCES for row in rows_of(DATA / "h200" / name))
    assert not [
        text for text in pq.read_table(kept, columns=["blocks"])["blocks"].to_pylist() if text and '"time"' in text
    ]


def test_they_are_read_once_and_no_garbage_is_collected_meanwhile() -> None:
    shipped.shipped_contents.cache_clear()
    gc.collect()  # begins to count anew: otherwise, a few new objects can be those that older ones are collected after
    before = [one["collections"] for one in gc.get_stats()]
    contents = shipped.shipped_contents()
    collected = [one["collections"] - number for one, number in zip(gc.get_stats(), before, strict=True)]
    assert collected[1:] == [0, 0]  # before and after, a few new objects may be collected
    assert gc.isenabled()
    assert shipped.shipped_contents() is contents
    records = open_environment_records(ExportedDatabase(shipped.SHIPPED, contents))
    assert model_of(records) is model_of(records)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(shipped, "shipped_contents", lambda: Contents({}, {}, ()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_they_are_used_if_nothing_is_named_and_nothing_was_measured(few: Path) -> None:
    database = shipped.open_or_shipped(None)
    assert shipped.shipped_notes(None) == (shipped.SHIPPED_NOTE,)
    assert database.url == shipped.SHIPPED
    assert shipped.contents_or_shipped(None).records == ()
    open_database("operators.db").close()
    own = shipped.open_or_shipped(None)
    assert (own.url, shipped.shipped_notes(None)) == ("operators.db", ())
    assert shipped.contents_or_shipped(None).keys == {}


def test_a_named_database_that_does_not_exist_is_an_error(few: Path) -> None:
    for read in (shipped.open_or_shipped, shipped.contents_or_shipped):
        with pytest.raises(InputError, match=r"mine\.db: no such database"):
            read("mine.db")


def test_our_own_file_is_read_as_any_other(tmp_path: Path) -> None:
    key = OperatorKey("aten.relu.default", ({"shape": [4], "dtype": "float32", "stride": [1]}, 2), {"tf32": True})
    environment = Environment("a GPU", None, "2.11.0", None, {"power_limit_w": 700.0})
    blocks = ({"kind": "summary", "count": 3}, {"kind": "energy", "call_ns": 5.0})
    record = Record(
        key.digest, environment.digest, {"mode": "hot"}, 1.0, 1.0, 1.0, blocks=blocks, kernels=("relu",), measured_ns=7
    )
    contents = Contents({key.digest: key}, {environment.digest: environment}, (record,))
    write_parquet(contents, tmp_path / "a.parquet")
    found = read_parquet(tmp_path / "a.parquet", is_ours=True)
    assert found == read_parquet(tmp_path / "a.parquet") == contents
    assert [one.digest for one in found.records] == [record.digest]


def write_workload(directory: Path) -> None:
    """Write a workload of one call."""
    key = OperatorKey("aten.relu.default", ({"shape": [64, 64], "dtype": "float32", "stride": [64, 1]},))
    workload = to_json(Workload("a", "inference", (Use(key, 1),)))
    (directory / "a.json").write_text(json.dumps(workload), encoding="utf-8")


def run(*command: str) -> Result:
    return CliRunner().invoke(main, ["ops", *command])


@pytest.mark.parametrize("command", [("query", "select 1 as n"), ("accuracy",), ("sum", "a.json")])
def test_every_command_that_uses_them_says_so(command: tuple[str, ...], few: Path) -> None:
    write_workload(few)
    assert shipped.SHIPPED_NOTE in run(*command).stderr
    named = run(*command, "--database", "mine.db")
    assert "mine.db: no such database" in named.stderr
    assert shipped.SHIPPED_NOTE not in named.stderr


def test_an_unknown_value_of_a_table_is_a_dash_as_in_other_tables(few: Path) -> None:
    key, other = (
        OperatorKey(f"aten.{name}.default", ({"shape": [4], "dtype": "float32"},)) for name in ("relu", "abs")
    )
    uses = (Use(key, 2, reuse_bytes=4096), Use(other, 1))
    Workload("a", "inference", uses, (), {}).write(few / "a.json")
    known, unknown = (line.split() for line in run("list", "a.json").stdout.splitlines()[1:])
    assert known[2:4] == ["4.0", "KiB"]
    assert unknown[2] == "–"


def test_a_prediction_needs_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_workload(tmp_path)
    (found,) = json.loads(run("predict", "a.json", "--gpu", "a100-80gb", "--json").stdout)
    assert found["notes"][0] == shipped.SHIPPED_NOTE
    assert "has no measurements" in found["notes"][1]
    assert 0 < found["time_low_ns"] < found["time_ns"] < found["time_high_ns"]
