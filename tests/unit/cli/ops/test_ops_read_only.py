"""Operator databases are read without a byte written, and files of others are told from them."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result
from refusing import refuse_second_attempts

from gpuledger.cli.main import main
from gpuledger.errors import InputError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.operator_database import open_database, open_existing
from gpuledger.ops.database.records import Environment, Record

KEY = OperatorKey("aten.relu.default", ({"shape": [2, 2], "dtype": "float32", "stride": [2, 1]},))
HERE = Environment("H200", "570.1", "2.13.0", "13.0", {})
COUNT = "select count(*) as n from records"


def state(directory: Path) -> dict[str, str]:
    """Return every file of a directory with what it holds and when it was written."""
    return {
        place.name: f"{hashlib.sha256(place.read_bytes()).hexdigest()} {place.stat().st_mtime_ns}"
        for place in sorted(directory.iterdir())
    }


def query(database: Path, text: str = COUNT) -> Result:
    return CliRunner().invoke(main, ["ops", "query", text, "--database", str(database), "--json"])


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "databases" / "operators #1?.database"
    path.parent.mkdir()
    with open_database(path) as made:
        made.put_keys([KEY])
        made.put_environment(HERE)
        made.put_records([Record(KEY.digest, HERE.digest, {"mode": "hot"}, 1.0, 1.0, 1.0, measured_ns=1)])
    return path


@pytest.fixture(params=["delete", "wal"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "home" / "places.sqlite"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode={request.param}")
        connection.execute("CREATE TABLE moz_places (url TEXT)")
        connection.execute("INSERT INTO moz_places VALUES ('x')")
        connection.commit()
    return path


def test_a_query_writes_nothing(database: Path) -> None:
    before = state(database.parent)
    done = query(database)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [{"n": 1}]
    assert state(database.parent) == before


def test_a_database_in_a_directory_that_cannot_be_written_is_read(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:  # root may write anywhere: let SQLite meet what a read-only mount would do
        seen = []
        real = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: seen.append(a[0]) or real(*a, **k))
        assert query(database).exit_code == 0
        assert seen
        assert all("mode=ro&immutable=1" in uri for uri in seen)
        return
    database.parent.chmod(0o500)
    try:
        assert query(database).exit_code == 0
    finally:
        database.parent.chmod(0o700)


def test_what_another_process_writes_meanwhile_is_seen(database: Path) -> None:
    with open_database(database) as writing:
        other = OperatorKey("aten.neg.default", KEY.inputs)
        writing.put_keys([other])
        writing.put_records([Record(other.digest, HERE.digest, {"mode": "hot"}, 1.0, 1.0, 1.0, measured_ns=2)])
        assert database.with_name(f"{database.name}-wal").stat().st_size  # not in the file itself yet
        assert json.loads(query(database).stdout) == [{"n": 2}]


def test_a_database_that_is_written_while_it_is_read_is_not_half_read(database: Path) -> None:
    with open_existing(str(database)) as reading:
        assert len(reading.records()) == 1
        with open_database(database) as writing:
            writing.put_keys([OperatorKey("aten.neg.default", KEY.inputs)])
        with pytest.raises(InputError, match="wrote to it while it was read"):
            reading.keys()


@pytest.mark.parametrize("words", [["query", COUNT], ["fit"], ["export", "--to", "csv"], ["accuracy"]])
def test_a_database_of_others_is_refused_and_stays_as_it_was(foreign: Path, words: list[str]) -> None:
    before = state(foreign.parent)
    done = CliRunner().invoke(main, ["ops", *words, "--database", str(foreign)])
    assert done.exit_code == 3, done.output
    assert "not an operator database" in done.stderr
    assert state(foreign.parent) == before


def test_nothing_is_written_into_a_database_of_others(foreign: Path) -> None:
    before = state(foreign.parent)
    with pytest.raises(InputError, match="not an operator database"):
        open_database(foreign)
    assert state(foreign.parent) == before


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0 and no more", b"{}" * 1000])
def test_files_that_are_no_database_are_refused_and_stay(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    before = state(tmp_path)
    assert query(path).exit_code == 3
    assert state(tmp_path) == before


def test_views_in_place_of_tables_are_refused(tmp_path: Path, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("ALTER TABLE records RENAME TO aside")
        endless = "WITH RECURSIVE n(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n) SELECT a AS digest FROM n"
        connection.execute(f"CREATE VIEW records AS {endless}")
        connection.commit()
    done = query(database)
    assert done.exit_code == 3
    assert "the table records is missing" in done.stderr


def test_a_damaged_table_is_said_at_once(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("ALTER TABLE records DROP COLUMN flops")
        connection.commit()
    refuse_second_attempts(monkeypatch)
    done = query(database)
    assert (done.exit_code, "no such column" in done.stderr) == (3, True), done.output


@pytest.mark.parametrize("inputs", ["{", "3", '"x"', "null"])
def test_damaged_rows_are_bad_input(database: Path, inputs: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE keys SET inputs = ?", (inputs,))
        connection.commit()
    done = query(database)
    assert done.exit_code == 3, done.output


def test_a_write_into_a_busy_database_is_tried_again_and_one_into_a_broken_one_is_not(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_database(database, retry_s=30) as made:
        with made.engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE records"))
        refuse_second_attempts(monkeypatch)
        with pytest.raises(InputError, match="no such table"):
            made.records()


def test_no_password_of_a_server_is_printed(tmp_path: Path) -> None:
    for url in (
        "postgresql://127.0.0.1:9/databases?user=me&password=s3cret&connect_timeout=2",
        "postgresql://me:s3cret@127.0.0.1:9/databases?connect_timeout=2",
        "postgresql://me:s3cret@127.0.0.1:9/databases.parquet",
        "postgresql://me:s3cret@127.0.0.1:port/databases",
        "postgresql://me:s3cret@[::1/databases",
        "postgresql://me:s3cret@127.0.0.1:9/databases?no_such_option=1&password=s3cret",
    ):
        for words in (
            ["query", COUNT, "--database", url],
            ["fit", "--database", url],
            ["merge", url, "--database", "x.db"],
        ):
            done = CliRunner().invoke(main, ["ops", *words])
            assert done.exit_code in (2, 3), done.output
            assert "s3cret" not in done.output, words
