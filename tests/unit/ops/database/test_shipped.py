"""The measurements that come with gpuledger: where they come from, and when they are used."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from folders import DATA

from gpuledger.errors import InputError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database import shipped
from gpuledger.ops.database.contents import Contents, read_parquet, write_parquet
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.database.records import Environment, Record

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


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(shipped, "shipped_contents", lambda: Contents({}, {}, ()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_they_are_used_if_nothing_is_named_and_nothing_was_measured(few: Path) -> None:
    database = shipped.open_or_shipped(None)
    assert shipped.notes_on(database) == (shipped.SHIPPED_NOTE,)
    assert database.url == shipped.SHIPPED
    assert shipped.contents_or_shipped(None).records == ()
    open_database("operators.db").close()
    own = shipped.open_or_shipped(None)
    assert (own.url, shipped.notes_on(own)) == ("operators.db", ())
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
