"""Files that are damaged, or made to do harm: each is refused in a line that names it, at once, in little room."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from fuzzing import refuse_or_read
from refusing import refuse_second_attempts

from gpuledger.analyze.compare.budget import parse_budget
from gpuledger.collect.sampling.calibrate import CardKey, load_profile
from gpuledger.config import resolve
from gpuledger.errors import GpuLedgerError, InputError, UsageError
from gpuledger.formats.readers import find_format, read_files
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import contents_of, write_parquet
from gpuledger.ops.database.operator_database import open_database, parse_url
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.exchange.import_lists import read_list
from gpuledger.ops.measure.campaign_file import read_campaign
from gpuledger.ops.predict.choose import open_environment_records, records_of_environment
from gpuledger.ops.predict.predict import load_model
from gpuledger.ops.workloads.workload import Use, Workload, read_workload

KEY = OperatorKey("aten.relu.default", ({"shape": [2], "dtype": "float32", "stride": [1]},))
ENVIRONMENT = Environment("card", "1", "2.13", "13", {"cache_bytes": 5})
LIMIT_S = 10.0


@pytest.fixture(autouse=True)
def limit() -> Any:
    """Hold every test here to the processor time that a small file may take."""
    begun_s = time.process_time()
    yield
    assert time.process_time() - begun_s < LIMIT_S


def test_a_time_log_of_very_many_algorithms_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "log.txt"
    place.write_text("".join(f"A{n}, 1, FORWARD, 1.0\n" for n in range(20_000)))
    with pytest.raises(InputError, match="20,000 algorithms, the limit is 64"):
        read_files("time-log", (place,), "x", {})


def test_a_long_time_log_is_read(tmp_path: Path) -> None:
    place = tmp_path / "log.txt"
    place.write_text("".join(f"A{n % 3}, {1 + n % 2}, T{'XYZ'[n % 3]}, 1.0\n" for n in range(30_000)))
    run = read_files("time-log", (place,), "x", {})
    assert sum(rank.tables["spans"].num_rows for rank in run.ranks) == 30_000


def test_a_log_of_very_many_cards_names_those_left_out(tmp_path: Path) -> None:
    place = tmp_path / "log.csv"
    rows = (f"2020/01/02 03:04:05.000, GPU-{n:08d}-1, 5 MiB\n" for n in range(20_000))
    place.write_text("timestamp, uuid, memory.used [MiB]\n" + "".join(rows))
    run = read_files("nvidia-smi", (place,), "x", {})
    assert len(run.ranks[0].facts["devices"]) == 256
    assert "more than 256 GPUs in one file" in run.unread[0]


def test_a_pipe_is_no_file_of_an_older_format(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x")
    with pytest.raises(InputError, match="x: not a regular file"):
        find_format(tmp_path / "x")
    with pytest.raises(InputError, match="x: not a regular file"):
        read_files("nvidia-smi", (tmp_path / "x",), "x", {})


YAML = {
    "aliases": "a: &a [1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "itself": "models: &a [*a]",
    "deep": "[" * 1_500,
    "date": "models: 2020-99-99",
    "digits": "models: [{model: x, batch: " + "9" * 5_000 + "}]",
    "hex": "models: [{model: x, batch: 0x" + "f" * 50_000 + ", mode: y}]",
    "long": "#" * 300_000,
    "bytes": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("name", YAML)
def test_a_campaign_that_cannot_be_is_bad_input(name: str, tmp_path: Path) -> None:
    place = tmp_path / "c.yml"
    content = YAML[name]
    place.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    with pytest.raises(InputError, match=r"c\.yml: "):
        read_campaign(place)


def test_damaged_campaigns_are_read_or_refused() -> None:
    refuse_or_read("campaign", 40)


def test_a_campaign_with_aliases_is_read(tmp_path: Path) -> None:
    place = tmp_path / "c.yml"
    place.write_text("models:\n  - &one {model: 'torchvision:alexnet', batch: 2}\n  - {<<: *one, batch: 3}\n")
    assert [one.batch for one in read_campaign(place).wanted] == [2, 3]


PYPROJECT = {
    "digits": "[tool.gpuledger]\nsteps = " + "9" * 5_000,
    "dotted": "a." * 20_000 + "b = 1",
    "deep": "a = " + "[" * 5_000,
    "value": "[tool.gpuledger]\nsteps = ['" + "x" * 5_000 + "']",
}


@pytest.mark.parametrize("name", PYPROJECT)
def test_settings_that_cannot_be_are_a_usage_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT[name])
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, tmp_path)
    assert len(caught.value.message) < 400


def test_a_pipe_called_pyproject_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pyproject.toml")
    assert resolve({}, {}, tmp_path)["steps"].origin == "default"


@pytest.mark.parametrize("text", ["[limits]\npeak_allocated_bytes = " + "9" * 5_000, "a." * 20_000 + "b = 1"])
def test_a_budget_that_cannot_be_is_bad_input(text: str) -> None:
    with pytest.raises(InputError, match=r"^b\.toml: not TOML: "):
        parse_budget(text, "b.toml")


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    place = tmp_path / "w.workload.json"
    Workload("w", "inference", (Use(KEY, 3),), (), {"device": "cpu", "notes": []}).write(place)
    return place


WORKLOADS: dict[str, Any] = {
    "a count": lambda value: value["uses"][0].update(count=10**400),
    "a dtype": lambda value: value["uses"][0]["key"]["inputs"][0].update(dtype="floav32"),
    "a shape": lambda value: value["uses"][0]["key"]["inputs"][0].update(shape=["x"]),
    "a size below zero": lambda value: value["uses"][0]["key"]["inputs"][0].update(shape=[-2]),
    "settings": lambda value: value["settings"].update(notes=3),
    "a name": lambda value: value.update(name=["x"]),
    "depth": lambda value: value.update(layers=json.loads("[" * 500 + "]" * 500)),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_that_cannot_be_is_bad_input(name: str, workload: Path) -> None:
    value = json.loads(workload.read_text())
    WORKLOADS[name](value)
    workload.write_text(json.dumps(value))
    with pytest.raises(InputError, match=r"w\.workload\.json: "):
        read_workload(workload)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    place = tmp_path / "x.db"
    record = Record(KEY.digest, ENVIRONMENT.digest, {"mode": "hot"}, 5.0, 4.0, 6.0, measured_ns=1)
    with open_database(place) as found:
        found.put_keys([KEY])
        found.put_environment(ENVIRONMENT)
        found.put_records([record])
    return place


CELLS = {
    "not JSON": ("keys", "inputs", "[["),
    "deep JSON": ("keys", "flags", '{"a":' * 2_000),
    "other JSON": ("keys", "inputs", '{"a": 3}'),
    "a tensor": ("keys", "inputs", '[{"shape": 3, "dtype": "float32"}]'),
    "a text for a number": ("records", "time_median_ns", "soon"),
    "a block": ("records", "blocks", '[{"kind": "energy"}]'),
    "kernels": ("records", "kernels", "[3]"),
    "flags": ("environments", "flags", '{"cache_bytes": "x"}'),
    "a reference": ("records", "key_digest", "0" * 64),
    "digits": ("environments", "flags", '{"a": ' + "9" * 5_000 + "}"),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_damaged_database_is_bad_input(name: str, database: Path) -> None:
    table, column, value = CELLS[name]
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute(f"UPDATE {table} SET {column} = ?", (value,))
    connection.close()
    with pytest.raises(InputError, match=r"x\.db: damaged database: "):
        contents_of(str(database))


@pytest.mark.parametrize("value", ["x", "[]", 1e400, -1, b"\xff", 1.5])
def test_a_database_whose_version_is_no_number_is_bad_input(value: object, database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE gpuledger_book SET schema_version = ?", (value,))
    connection.close()
    with pytest.raises(InputError, match=r"x\.db: damaged database: schema version"):
        open_database(database)


@pytest.mark.parametrize("card", [None, "a card"])
def test_a_record_without_its_environment_is_bad_input(card: str | None, database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("UPDATE records SET environment_digest = 'null'")
    connection.close()
    with open_database(database) as found:
        with pytest.raises(InputError, match=r"x\.db: damaged database: the environment of a record is missing"):
            open_environment_records(found, card)
        with pytest.raises(InputError, match=r"x\.db: damaged database: the environment of a record is missing"):
            records_of_environment(found, ENVIRONMENT)


def test_a_database_with_a_text_that_is_not_utf8_is_refused_and_not_tried_again(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE records SET blocks = CAST(x'5bff5d' AS TEXT)")
    connection.close()
    refuse_second_attempts(monkeypatch)
    with open_database(database) as found, pytest.raises(InputError, match=r"x\.db: .*UTF-8"):
        list(found.records())


def test_an_exchanged_database_names_the_row_that_is_damaged(database: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = tmp_path / "x.parquet"
    write_parquet(contents_of(str(database)), place)
    assert len(contents_of(str(place)).records) == 1
    table = pq.read_table(place)
    number = table.schema.names.index("kernels")
    pq.write_table(table.set_column(number, "kernels", pa.array(["[3]"])), place)
    with pytest.raises(InputError, match=r"x\.parquet: damaged: row 1: record\.kernels"):
        contents_of(str(place))


def test_a_url_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="not a valid URL"):
        parse_url("postgresql://[::1")


def test_an_operator_list_that_is_no_python_is_bad_input(tmp_path: Path) -> None:
    place = tmp_path / "x.txt"
    for call in ("(" * 5_000, "((1e999,), {})", "((" + "9" * 5_000 + ",), {})", "x" * 70_000, "((T([-1], f16),), {})"):
        place.write_text(f"Operator: aten.x.default\ncnt: 1, {call}\n")
        with pytest.raises(InputError, match=r"x\.txt:2: "):
            read_list(place)


def test_a_kept_calibration_that_is_damaged_is_measured_again(tmp_path: Path) -> None:
    place = tmp_path / "calibration.json"
    for content in ("[" * 5_000, '{"profile_version": 1, "profiles": {"a": ' + "9" * 5_000 + "}}", "{}"):
        place.write_text(content)
        found = load_profile(CardKey("a", "b", "c", "d", "e"), place)
        assert found.profile is None
        assert "not usable, so the calibration" in found.notes[0]


def test_a_model_that_is_damaged_is_bad_input(tmp_path: Path) -> None:
    import numpy as np

    for number, facts in enumerate(('{"version":', "[]", "{}", '{"version": 5, "features": 3}')):
        place = tmp_path / f"{number}.npz"
        np.savez(place, facts=np.array(facts))
        with pytest.raises(GpuLedgerError, match=r"npz: "):
            load_model(place)
