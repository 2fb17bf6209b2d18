from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from synthetic import HOSTILE, make_run

from gpuledger.cli.main import main
from gpuledger.model.run import read_run, write_table
from gpuledger.model.schema.tables import TABLES


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, ["export", *(str(word) for word in words)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "two.ledger", ranks=2, blocks=300, hostile_names=True)


def rows_of(run: Path, table: str) -> list[dict[str, object]]:
    return [{"rank": rank.number, **row} for rank in read_run(run).ranks for row in rank.table(table).to_pylist()]


def test_json_holds_every_row_of_every_table(run: Path, tmp_path: Path) -> None:
    assert ask(run, "--to", "json", "-o", tmp_path / "all.json").exit_code == 0
    document = json.loads((tmp_path / "all.json").read_text(encoding="ascii"))
    assert set(document["tables"]) == set(TABLES)
    for name, rows in document["tables"].items():
        assert rows == rows_of(run, name), name
    assert document["run"] == read_run(run).manifest.to_json()
    assert document["ranks"] == [rank.manifest.to_json() for rank in read_run(run).ranks]


def test_parquet_merges_the_ranks_and_reads_back_equal(run: Path, tmp_path: Path) -> None:
    assert ask(run, "--to", "parquet", "-o", tmp_path / "out").exit_code == 0
    assert {path.stem for path in (tmp_path / "out").glob("*.parquet")} == set(TABLES)
    for name in TABLES:
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").to_pylist() == rows_of(run, name), name


def test_csv_is_whole_and_null_is_empty(run: Path, tmp_path: Path) -> None:
    assert ask(run, "--to", "csv", "-o", tmp_path / "out").exit_code == 0
    for name, table in TABLES.items():
        with (tmp_path / "out" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
            title, *rows = list(csv.reader(stream))
        assert title == ["rank", *table.column_names]
        assert len(rows) == len(rows_of(run, name)), name
    with (tmp_path / "out" / "blocks.csv").open(encoding="utf-8", newline="") as stream:
        blocks = list(csv.DictReader(stream))
    wanted = rows_of(run, "blocks")
    for column in ("address", "free_index", "category", "rank"):
        assert [row[column] for row in blocks] == [_as_csv(row[column]) for row in wanted]


def _as_csv(value: object) -> str:
    return "" if value is None else str(value)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_hostile_names_survive_stdout(run: Path, form: str) -> None:
    result = ask(run, "--to", form, "--table", "modules", "-o", "-")
    assert result.exit_code == 0
    if form == "json":
        rows = json.loads(result.stdout_bytes)["tables"]["modules"]
    else:
        rows = list(csv.DictReader(io.StringIO(result.stdout_bytes.decode("utf-8"), newline="")))
    paths = [str(row["path"]) for row in rows]
    assert paths == [row["path"] for row in rows_of(run, "modules")]
    assert set(HOSTILE) <= set(paths)


def test_one_table_to_one_file(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ask(run, "--to", "csv", "--table", "steps").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["two-steps.csv"]


def test_without_a_path_the_files_are_named_after_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [ask(run, "--to", form).exit_code for form in ("csv", "parquet", "json")] == [0, 0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"two-csv", "two-parquet", "two.json"}


def test_nothing_is_overwritten_without_force(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    for form, path in (("csv", tmp_path / "out"), ("json", tmp_path / "out" / "notes.txt")):
        refused = ask(run, "--to", form, "-o", path)
        assert refused.exit_code == 2
        assert "already exists" in refused.stderr
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert ask(run, "--to", "csv", "-o", tmp_path / "out", "--force").exit_code == 0
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_failed_export_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    run = make_run(tmp_path / "bad.ledger", blocks=50)
    part = run / "rank-0" / "blocks" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:200])
    (tmp_path / "old.json").write_text("old")
    result = ask(run, "--to", "json", "-o", tmp_path / "old.json", "--force")
    assert result.exit_code == 3
    assert (tmp_path / "old.json").read_text() == "old"
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "csv", "-o", "-"], "-o -: cannot write csv to stdout"),
        (["--to", "parquet", "--table", "blocks", "-o", "-"], "-o -: cannot write parquet to stdout"),
        (["--to", "json", "-o", "."], ".: is a directory"),
        (["--to", "yaml"], "invalid value for '--to'"),
        (["--to", "csv", "--table", "bricks"], "invalid value for '--table'"),
    ],
)
def test_wrong_calls(run: Path, words: list[str], message: str) -> None:
    result = ask(run, *words)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"gpuledger: error: {message}")


def test_a_place_that_is_not_there_is_one_line(run: Path, tmp_path: Path) -> None:
    result = ask(run, "--to", "json", "-o", tmp_path / "nowhere" / "x.json")
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "No such file or directory" in result.stderr


def test_not_a_number_is_null_in_json(tmp_path: Path) -> None:
    run = make_run(tmp_path / "nan.ledger", blocks=50)
    samples = read_run(run).rank().table("samples")
    place = samples.schema.get_field_index("power_average_w")
    nothing = pa.array([float("nan")] * samples.num_rows)
    write_table(run / "rank-0", samples.set_column(place, samples.schema.field(place), nothing), "samples")
    rows = json.loads(ask(run, "--to", "json", "--table", "samples", "-o", "-").stdout_bytes)["tables"]["samples"]
    assert {row["power_average_w"] for row in rows} == {None}
