"""Databases as Parquet, CSV, HTML and SQL; merged, compared, and filled from others' files."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("torch")

from click.testing import CliRunner, Result

from gpuledger.cli.main import main
from gpuledger.errors import EmptyRunError, InputError
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.contents import Contents, contents_of, merge, read_parquet, write_parquet
from gpuledger.ops.database.database_diff import diff_databases
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.database.readable import open_readable
from gpuledger.ops.database.records import Environment, Record
from gpuledger.ops.exchange.import_lists import read_list
from gpuledger.ops.workloads.rebuild import rebuild
from gpuledger.ops.workloads.workload import Use, Workload, read_workload

pytestmark = pytest.mark.torch
HERE = Environment("NVIDIA H200", "570.1", "2.13.0", "13.0", {"benchmark": False, "l2": 50})
SHAPES = [{"shape": [n + 1, 2], "dtype": "float32", "stride": [2, 1]} for n in range(6)]
KEYS = [OperatorKey("aten.relu.default", (shape,)) for shape in SHAPES]


def record(key: OperatorKey, time_ns: float, measured_ns: int = 1, where: Environment = HERE, **more: Any) -> Record:
    made = Record(
        key.digest, where.digest, {"mode": "hot"}, time_ns, 0.99 * time_ns, 1.01 * time_ns, blocks=({"t_ns": 0.1},),
        kernels=("<k>",), measured_ns=measured_ns,
    )  # fmt: skip
    return replace(made, **more)


def contents(records: list[Record], where: Environment = HERE) -> Contents:
    return Contents({key.digest: key for key in KEYS}, {where.digest: where}, tuple(records))


@pytest.fixture
def database(tmp_path: Path) -> str:
    place = str(tmp_path / "operators.db")
    failed = record(KEYS[2], 1, 9, status="failed", reason="out of memory <b>", time_median_ns=None)
    records = [record(KEYS[0], 10.0), record(KEYS[1], 0.1 + 0.2, energy_median_j=1e-3, flops=7), failed]
    with open_database(place) as made:
        merge(made, contents(records))
    return place


def ops(*words: str) -> Result:
    return CliRunner().invoke(main, ["ops", *words])


# -- exchange ---------------------------------------------------------------------------------------------------------


def test_parquet_holds_all_of_a_database(database: str, tmp_path: Path) -> None:
    assert ops("export", "--database", database, "--to", "parquet", "-o", str(tmp_path / "b.parquet")).exit_code == 0
    before, after = contents_of(database), contents_of(str(tmp_path / "b.parquet"))
    assert dict(before.keys) == dict(after.keys)
    assert set(before.keys) == {key.digest for key in KEYS}
    assert before.environments == after.environments
    assert sorted(before.records, key=repr) == sorted(after.records, key=repr)


def test_merging_twice_adds_nothing(database: str, tmp_path: Path) -> None:
    write_parquet(contents_of(database), tmp_path / "b.parquet")
    other = str(tmp_path / "other.db")
    results = [ops("merge", str(tmp_path / "b.parquet"), "--database", other) for _ in range(2)]
    assert [re.findall(r": (\d) of 3 records", result.stdout) for result in results] == [["3"], ["0"]]
    assert contents_of(other) == contents_of(database)


def test_csv_and_html_hold_every_record(database: str, tmp_path: Path) -> None:
    for form in ("csv", "html"):
        assert ops("export", "--database", database, "--to", form, "-o", str(tmp_path / f"b.{form}")).exit_code == 0
    with open(tmp_path / "b.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(KEYS)  # three records, three keys without one
    assert float(next(row["time_median_ns"] for row in rows if row["flops"] == "7")) == 0.1 + 0.2
    page = (tmp_path / "b.html").read_text()
    assert page.count("<tr>") == 4
    assert f"<p>3 records of {len(KEYS)} operators</p>" in page
    assert "out of memory &lt;b&gt;" in page
    assert "http" not in page


def test_an_export_replaces_nothing(database: str, tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("mine")
    result = ops("export", "--database", database, "--to", "csv", "-o", str(tmp_path / "b.csv"))
    assert (result.exit_code, (tmp_path / "b.csv").read_text()) == (2, "mine")
    for place, words in ((tmp_path, "is a directory"), (tmp_path / "no" / "b.csv", "does not exist"), ("-", "stdout")):
        result = ops("export", "--database", database, "--to", "csv", "-o", str(place))
        assert result.exit_code == 2
        assert words in result.stderr
    assert ops("export", "--database", database, "--to", "csv", "-o", str(tmp_path / "b.csv"), "--force").exit_code == 0


def test_files_that_are_no_export_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_parquet(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_text("no parquet")
    with pytest.raises(InputError, match=r"x\.parquet"):
        read_parquet(tmp_path / "x.parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": [1]}), tmp_path / "y.parquet")
    with pytest.raises(InputError, match="not an export of an operator database"):
        read_parquet(tmp_path / "y.parquet")
    with monkeypatch.context() as patch:
        patch.setattr("gpuledger.ops.database.contents.VERSION", 99)
        write_parquet(contents([]), tmp_path / "z.parquet")
    with pytest.raises(InputError, match="version 99, but this gpuledger reads up to version 1"):
        read_parquet(tmp_path / "z.parquet")


@pytest.mark.parametrize("words", ["query select", "sum relu:relu", "predict relu:relu", "fit", "accuracy"])
def test_a_database_that_is_not_there_is_not_made(words: str, tmp_path: Path) -> None:
    place = tmp_path / "none.db"
    result = ops(*words.split(), "--database", str(place))
    assert (result.exit_code, place.exists()) == (3, False)
    assert "no such database" in result.stderr


def test_an_export_is_not_written_to_and_the_way_to_a_database_is_told(database: str, tmp_path: Path) -> None:
    place = str(tmp_path / "out.parquet")
    ops("export", "--database", database, "--to", "parquet", "-o", place)
    result = ops("merge", database, "--database", place)
    assert result.exit_code == 3
    assert f"hint: Import it with: gpuledger ops merge {place} --database FILE" in result.stderr


def test_an_export_is_read_like_the_database_it_was_made_of(database: str, tmp_path: Path) -> None:
    place = str(tmp_path / "out.parquet")
    ops("export", "--database", database, "--to", "parquet", "-o", place)
    store, export = open_readable(database), open_readable(place)
    held = {one.digest for one in store.records()}
    assert export.url == place
    assert export.environments() == store.environments()
    assert [one.digest for one in export.records()] == [one.digest for one in store.records()]
    assert {digest: key for digest, key in store.keys().items() if digest in held} == {
        digest: key for digest, key in export.keys().items() if digest in held
    }


@pytest.mark.parametrize("words", ["sum w.json", "predict w.json", "fit", "accuracy"])
def test_commands_that_only_read_take_an_export(words: str, database: str, tmp_path: Path) -> None:
    place, workload = str(tmp_path / "out.parquet"), tmp_path / "w.json"
    Workload("w", "inference", (Use(KEYS[0], 3), Use(KEYS[1], 1))).write(workload)
    ops("export", "--database", database, "--to", "parquet", "-o", place)
    words = words.replace("w.json", str(workload))
    of_store, of_export = (ops(*words.split(), "--database", where, "--json") for where in (database, place))
    assert (of_export.exit_code, of_export.stdout) == (of_store.exit_code, of_store.stdout)
    assert of_export.stderr == of_store.stderr
    if words.startswith("sum"):
        assert json.loads(of_export.stdout)[0]["time_ns"] == pytest.approx(3 * 10 + 0.3)


# -- questions --------------------------------------------------------------------------------------------------------


def test_sql_sees_records_with_their_operators(database: str) -> None:
    query = "select operator, gpu, status, time_median_ns as t from measured order by t nulls last"
    rows = json.loads(ops("query", query, "--database", database, "--json").stdout)
    assert [row["t"] for row in rows] == [0.1 + 0.2, 10.0, None]
    assert {(row["operator"], row["gpu"]) for row in rows} == {("aten.relu.default", "NVIDIA H200")}
    tables = json.loads(ops("query", "show tables", "--database", database, "--json").stdout)
    assert {row["name"] for row in tables} == {"keys", "environments", "records", "measured"}
    assert "flops" in ops("query", "select flops from records", "--database", database, "--csv").stdout


@pytest.mark.parametrize(
    "query", ["drop table keys", "insert into keys values (1)", "copy keys to '/tmp/x'", "select * from '/etc/passwd'"]
)
def test_sql_changes_and_reads_nothing_else(database: str, query: str) -> None:
    refused = ops("query", query, "--database", database)
    assert refused.exit_code == 2
    assert "blocks" not in refused.stderr  # those are a run's
    assert len(contents_of(database).keys) == len(KEYS)


# -- two databases -----------------------------------------------------------------------------------------------------


def test_a_database_differs_from_itself_in_nothing(database: str) -> None:
    found = diff_databases(contents_of(database), contents_of(database))
    assert {change.time_ratio for change in found.changes} == {1.0}
    assert (found.only_before, found.only_after, found.median_time_ratio) == (0, 0, 1.0)
    assert not any(change.certain for change in found.changes)


def test_a_diff_compares_the_newest_by_the_same_mode(tmp_path: Path) -> None:
    newer = replace(HERE, driver="580.2")
    old = contents([record(KEYS[0], 10), record(KEYS[0], 20, 2), record(KEYS[1], 10), record(KEYS[3], 5)])
    new = contents(
        [
            record(KEYS[0], 30, where=newer),
            record(KEYS[1], 10.1, where=newer),
            record(KEYS[3], 5, where=newer, method={"mode": "rotating"}),
            record(KEYS[2], 5, where=newer),
        ],
        newer,
    )
    found = diff_databases(old, new)
    assert [(change.time_ratio, change.certain) for change in found.changes] == [(1.5, True), (1.01, False)]
    assert (found.only_before, found.only_after) == (1, 2)
    write_parquet(old, tmp_path / "a.parquet")
    write_parquet(new, tmp_path / "b.parquet")
    text = ops("diff", str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")).stdout
    assert "driver 570.1" in text
    assert "driver 580.2" in text
    assert "1.500" in text
    document = json.loads(ops("diff", str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet"), "--json").stdout)
    assert document["changes"][0]["intervals_apart"] is True


def test_databases_with_nothing_in_common_are_said() -> None:
    with pytest.raises(EmptyRunError, match="no measured operators in common"):
        diff_databases(contents([record(KEYS[0], 1)]), contents([record(KEYS[1], 1)]))


# -- others' files ----------------------------------------------------------------------------------------------------

LIST = """Operator: aten._softmax.default
cnt: 12, ((T([32, 12, 128, 128], f16), -1, False), {})
Operator: aten.add.Tensor
cnt: 3, ((T([32, 128, 768], f16), T([32, 128, 768], f16, stride=(98304, 1, 128))), {})
cnt: 1, ((T([], i64), 1), {})
Operator: aten.masked_fill.Scalar
cnt: 2, ((T([4, 4], f32), T([4, 4], b8), -inf), {})
Operator: aten._to_copy.default
cnt: 5, ((T([2, 3], f32),), {'dtype': f16, 'layout': torch.strided, 'device': 'cuda'})
"""


def test_tritonbench_lists_become_workloads_that_can_be_rebuilt(tmp_path: Path) -> None:
    place = tmp_path / "hf_train" / "Bert_training.txt"
    place.parent.mkdir()
    place.write_text(LIST)
    result = ops("import", "tritonbench", str(place), "-o", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    workload = read_workload(tmp_path / "Bert_training.workload.json")
    assert (workload.mode, len(workload.uses), workload.calls) == ("training", 5, 23)
    keys = {use.key.text: use for use in workload.uses}
    assert keys["masked_fill.Scalar(4x4, 4x4:bool, -inf)"].count == 2
    for use in workload.uses:
        rebuild(use.key)()
    tensors = list(workload.uses[1].key.tensors())
    assert [tensor["stride"] for tensor in tensors] == [[98304, 768, 1], [98304, 1, 128]]
    assert ops("import", "tritonbench", str(place), "-o", str(tmp_path)).exit_code == 2  # it is there already


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cnt: 1, ((__import__('os').system('true'),), {})", "unknown"),
        ("cnt: x, ((1,), {})", "not an operator call"),
        ("cnt: 1, ((T([1, open], f16),), {})", "unknown open"),
        ("cnt: 1, ((T([1], f99),), {})", "unknown f99"),
        ("cnt: 1, ((", "not an operator call"),
        ("anything", "expected an operator or a call"),
        ("", "has no operator calls"),
    ],
)
def test_a_line_that_is_no_call_is_named(line: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text(f"Operator: aten.relu.default\n{line}\n")
    with pytest.raises(InputError, match=words) as caught:
        read_list(tmp_path / "x.txt")
    assert "x.txt" in caught.value.message


@pytest.mark.parametrize("name", ["dataset_20241116.pt", "resnet50_32_3_224_224.pkl.xz", "model.PTH"])
def test_pickles_are_refused_by_name(name: str) -> None:
    result = ops("import", "printed-rows", name, "--gpu", "A30")
    assert result.exit_code == 3
    assert f"{name}: a pickle file can run code when it is read" in result.stderr


def test_rows_without_a_card_are_refused() -> None:
    assert ops("import", "printed-rows", "rows.txt").exit_code == 2
