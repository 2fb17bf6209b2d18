"""The same tests on both stores."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa
from postgres import Server, server  # noqa: F401 - a fixture
from programs import environment

from gpuledger.errors import InputError, UsageError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database import schema
from gpuledger.ops.database.operator_database import OperatorDatabase, open_database, open_existing, parse_url
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.predict.choose import open_environment_records, records_of_environment

HERE = Environment("H200", "570.1", "2.13.0", "13.0", {"benchmark": False})
THERE = replace(HERE, driver=None, cuda=None)
KEYS = [OperatorKey("aten.relu.default", ({"shape": [n, 2], "dtype": "float32", "stride": [2, 1]},)) for n in range(9)]


def record(key: OperatorKey, measured_ns: int, where: Environment = HERE, **values: object) -> Record:
    made = Record(
        key.digest, where.digest, {"mode": "hot", "graph": True}, 10.5, 10.0, 11.0, blocks=({"t_ns": 3, "n": [1]},),
        kernels=("relu_kernel",), measured_ns=measured_ns, flops=8, bytes=1 << 40,
    )  # fmt: skip
    return replace(made, **values)  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "operators.db")
    own: Server = request.getfixturevalue("server")
    return own.new_database()


@pytest.fixture
def database(url: str) -> OperatorDatabase:
    made = open_database(url)
    made.put_keys(KEYS)
    made.put_environment(HERE)
    made.put_environment(THERE)
    return made


def test_what_was_put_comes_back(database: OperatorDatabase, url: str) -> None:
    records = [record(KEYS[2], 5), record(KEYS[1], 3, energy_median_j=0.5, base_w=120.25), record(KEYS[1], 4, THERE)]
    failed = record(KEYS[0], 6, status="failed", reason="out of memory — 3 MiB", time_median_ns=None)
    database.put_records([*records, failed])
    database.close()
    again = open_database(url)
    assert again.records() == [records[1], records[2], records[0], failed]
    assert again.records(THERE) == again.records(THERE.digest) == [records[2]]
    assert again.records(HERE, [KEYS[1].digest]) == [records[1]]
    assert again.keys() == {key.digest: key for key in KEYS}
    assert again.keys([KEYS[0].digest, "nothing"]) == {KEYS[0].digest: KEYS[0]}
    assert again.environments() == {HERE.digest: HERE, THERE.digest: THERE}


def test_a_database_that_is_opened_to_read_refuses_to_be_written(database: OperatorDatabase, url: str) -> None:
    database.put_records([record(KEYS[0], 1)])
    database.close()
    with open_existing(url, retry_s=0) as reading:
        assert reading.records() == [record(KEYS[0], 1)]
        with pytest.raises(InputError, match=r"read-?only"):
            reading.put_environment(replace(HERE, card="other"))


def test_an_older_database_is_not_changed_by_reading(
    database: OperatorDatabase, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.close()
    _newest_schema(monkeypatch, _with_note)
    with pytest.raises(InputError, match="must be updated to"):
        open_existing(url)
    with open_database(url), open_existing(url) as reading:
        assert reading.keys().keys() == {key.digest for key in KEYS}


def test_writing_twice_changes_nothing(database: OperatorDatabase) -> None:
    for _ in range(2):
        database.put_records([record(KEYS[0], 1), record(KEYS[0], 1)])
        database.put_keys(KEYS)
        database.put_environment(HERE)
    assert len(database.records()) == 1
    database.put_records([record(KEYS[0], 2)])
    assert len(database.records()) == 2


def test_missing_is_what_has_no_record_for_the_environment(database: OperatorDatabase) -> None:
    digests = [key.digest for key in KEYS[:4]]
    database.put_records(
        [
            record(KEYS[0], 1),
            record(KEYS[1], 1, energy_median_j=1.0),
            record(KEYS[2], 1, status="failed", reason="x"),
            record(KEYS[3], 1, THERE),
        ]
    )
    assert database.missing(digests, HERE) == [digests[3]]
    assert database.missing(digests, HERE, need_energy=True) == [digests[0], digests[3]]
    assert database.missing(digests, HERE, mode="rotating") == digests
    assert database.missing(digests[::-1], THERE.digest) == [digests[2], digests[1], digests[0]]


def test_a_shelf_holds_one_software_although_the_database_learned_of_another_later(database: OperatorDatabase) -> None:
    database.put_records([record(KEYS[0], 1), record(KEYS[1], 2), record(KEYS[0], 9, THERE)])
    shelf = records_of_environment(database, HERE)
    assert (shelf.environment, {one.key_digest for one in shelf.records}) == (HERE, {KEYS[0].digest, KEYS[1].digest})
    assert {one.environment_digest for one in shelf.records} == {HERE.digest}
    assert shelf.others == (THERE,)
    assert open_environment_records(database, HERE.card).environment == THERE  # the one measured last
    assert records_of_environment(database, replace(HERE, driver="580.2")).records == ()


def test_more_digests_than_one_statement_takes(database: OperatorDatabase) -> None:
    many = [f"{number:064x}" for number in range(2000)]
    assert database.missing([*many, KEYS[0].digest], HERE) == [*many, KEYS[0].digest]


def test_a_batch_is_written_whole_or_not_at_all(database: OperatorDatabase) -> None:
    stray = record(OperatorKey("aten.neg.default", ()), 1)
    with pytest.raises(InputError, match="key or environment of a record is missing"):
        database.put_records([record(KEYS[0], 1), stray])
    assert database.records() == []


def test_a_newer_database_is_refused(database: OperatorDatabase, url: str) -> None:
    with database.engine.begin() as connection:
        connection.execute(sa.update(schema.VERSIONS).values(schema_version=schema.VERSION + 1))
    database.close()
    words = f"schema version {schema.VERSION + 1}, but this gpuledger reads up to version {schema.VERSION}"
    with pytest.raises(InputError, match=words):
        open_database(url)


def _with_note(connection: sa.Connection) -> None:
    connection.execute(sa.text("ALTER TABLE keys ADD COLUMN note TEXT"))


def _broken(connection: sa.Connection) -> None:
    _with_note(connection)
    connection.execute(sa.text("ALTER TABLE no_such_table ADD COLUMN note TEXT"))


def test_an_older_database_is_taken_to_the_newest_schema(
    database: OperatorDatabase, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.put_records([record(KEYS[0], 1)])
    database.close()
    _newest_schema(monkeypatch, _with_note)
    newer = open_database(url)
    assert newer.records() == [record(KEYS[0], 1)]
    with newer.engine.connect() as connection:
        assert schema.version_of(connection) == schema.VERSION
        assert connection.execute(sa.text("SELECT count(note) FROM keys")).scalar() == 0
    newer.close()


def test_a_step_that_fails_leaves_the_database_as_it_was(
    database: OperatorDatabase, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.close()
    with monkeypatch.context() as patch:
        _newest_schema(patch, _broken)
        with pytest.raises(InputError, match="no_such_table"):
            open_database(url)
    again = open_database(url)
    assert again.keys() == {key.digest: key for key in KEYS}
    columns = {column["name"] for column in sa.inspect(again.engine).get_columns("keys")}
    assert "note" not in columns


def _newest_schema(monkeypatch: pytest.MonkeyPatch, step: Callable[[sa.Connection], None]) -> None:
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, step))
    monkeypatch.setattr(schema, "VERSION", len(schema.STEPS))


WRITER = """
import sys
from gpuledger.ops.database.operator_database import open_database
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.records import Environment, Record
database = open_database(sys.argv[1])
where = Environment("H200", None, "2.13.0", None)
key = OperatorKey("aten.relu.default", ())
database.put_keys([key])
database.put_environment(where)
print("ready", flush=True)
for batch in range(int(sys.argv[2])):
    database.put_records([Record(key.digest, where.digest, {"n": n}, 1.0, measured_ns=batch) for n in range(5)])
    print(batch, flush=True)
"""


def writer(url: str, batches: int, directory: Path) -> subprocess.Popen[str]:
    script = directory / "writer.py"
    script.write_text(textwrap.dedent(WRITER))
    command = [sys.executable, str(script), url, str(batches)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())


def test_two_writers_lose_nothing_and_write_nothing_twice(url: str, tmp_path: Path) -> None:
    both = [writer(url, 40, tmp_path) for _ in range(2)]
    for one in both:
        one.communicate(timeout=600)
        assert one.returncode == 0
    assert sorted((r.measured_ns, r.method["n"]) for r in open_database(url).records()) == [
        (batch, n) for batch in range(40) for n in range(5)
    ]


def test_a_writer_killed_in_the_middle_leaves_whole_batches(url: str, tmp_path: Path) -> None:
    one = writer(url, 100_000, tmp_path)
    assert one.stdout is not None
    said = [one.stdout.readline() for _ in range(5)]
    one.send_signal(signal.SIGKILL)
    said += one.stdout.read().split()
    one.wait(timeout=600)
    one.stdout.close()
    last_said = int(said[-1])
    database = open_database(url)
    counts: dict[int, int] = {}
    for found in database.records():
        counts[found.measured_ns] = counts.get(found.measured_ns, 0) + 1
    assert set(counts.values()) == {5}
    assert last_said <= max(counts) <= last_said + 1
    if database.engine.dialect.name == "sqlite":
        with database.engine.connect() as connection:
            assert connection.execute(sa.text("PRAGMA integrity_check")).scalar() == "ok"


def test_a_server_that_is_gone_for_a_while_costs_nothing(server: Server) -> None:  # noqa: F811 - the fixture
    database = open_database(server.new_database())
    database.put_keys(KEYS)
    database.put_environment(HERE)
    database.put_records([record(KEYS[0], 0)])
    server.stop()
    back = threading.Thread(target=lambda: (time.sleep(0.5), server.start()))
    back.start()
    try:
        database.put_records([record(KEYS[0], 1), record(KEYS[1], 1)])
        assert database.missing([KEYS[2].digest], HERE) == [KEYS[2].digest]
    finally:
        back.join()
    found = {(one.key_digest, one.measured_ns) for one in database.records()}
    assert found == {(KEYS[0].digest, 0), (KEYS[0].digest, 1), (KEYS[1].digest, 1)}
    assert len(database.records()) == 3


def test_a_server_that_stays_away_is_named_without_its_password() -> None:
    with pytest.raises(InputError, match=r"postgresql://me:.*refused") as caught:
        open_database("postgresql://me:secret@127.0.0.1:9/databases")
    assert "secret" not in f"{caught.value.message}{caught.value.hint}"


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text(json.dumps({"a": list(range(1000))}))
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path))}.*not an operator database"):
        open_database(tmp_path / "x.db")
    with pytest.raises(InputError, match=r"place\.database: the directory"):
        open_database(tmp_path / "no" / "such" / "place.database")
    with pytest.raises(InputError, match="a directory, not a database"):
        open_database(tmp_path)


@pytest.mark.parametrize("text", ["mysql://x/y", "://", "oracle://x"])
def test_other_stores_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--database"):
        parse_url(text)
