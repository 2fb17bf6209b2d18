from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result
from synthetic import make_run

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.cli.main import main
from gpuledger.export.sql import ask as ask_database
from gpuledger.export.sql import open_database
from gpuledger.model import parquet_parts
from gpuledger.model.run import read_run
from gpuledger.model.schema.tables import TABLES


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "two.ledger", ranks=2, blocks=300, hostile_names=True)


def ask(run: Path, query: str, *words: str, columns: int | None = None) -> Result:
    environ = {"COLUMNS": str(columns) if columns else None}
    return CliRunner().invoke(main, ["sql", str(run), query, *words], env=environ)


def rows(run: Path, query: str) -> list[dict[str, object]]:
    result = ask(run, query, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_holds_the_rows_of_all_ranks(run: Path, name: str) -> None:
    wanted = [{"rank": rank.number, **row} for rank in read_run(run).ranks for row in rank.table(name).to_pylist()]
    found = rows(run, f"select * from {name}")
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_the_sizes_of_a_file_are_read_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each table, or `sql` on a run of many ranks would take minutes to begin."""
    checked: list[Path] = []
    monkeypatch.setattr(parquet_parts, "check_unpacked", lambda parts, _: checked.extend(parts))
    open_database(read_run(run)).close()
    assert checked
    assert len(checked) == len(set(checked))


def test_show_tables_lists_the_tables_and_the_views(run: Path) -> None:
    assert {row["name"] for row in rows(run, "show tables")} == {*TABLES, "allocations", "peaks", "at_peak"}


def test_at_peak_is_what_show_shows(run: Path) -> None:
    query = "select rank, category, sum(requested_bytes) as bytes from at_peak group by all"
    found = {(row["rank"], row["category"]): row["bytes"] for row in rows(run, query)}
    wanted: dict[tuple[int, str], int] = {}
    for rank in read_run(run).ranks:
        breakdown = break_down(rank, find_peak(rank), by=("category",))
        wanted |= {(rank.number, a.category): a.bytes for a in breakdown.accounts if a.category != "rounding"}
    assert found == wanted
    peaks = {row["rank"]: row["index"] for row in rows(run, "select * from peaks")}
    assert peaks == {rank.number: find_peak(rank).index for rank in read_run(run).ranks}


def test_accounts_have_the_module_and_the_name(run: Path) -> None:
    query = "select distinct module, name from allocations where category = 'weight'"
    assert all(row["name"] in (None, f"{row['module']}.weight") for row in rows(run, query))
    assert rows(run, "select count(*) as n from allocations") == rows(run, "select count(*) as n from blocks")


@pytest.mark.parametrize(
    "query",
    [
        "copy blocks to '{place}/stolen.csv'",
        "copy (select 1) to '{place}/stolen.csv'",
        "export database '{place}/stolen'",
        "attach '{place}/stolen.db'",
        "create table stolen as select 1",
        "insert into blocks select * from blocks",
        "drop view blocks",
        "set enable_external_access = true",
        "pragma enable_external_access",
        "install httpfs",
        "load httpfs",
        "explain analyze copy blocks to '{place}/stolen.csv'",
        "select 1; copy blocks to '{place}/stolen.csv'",
        "select * from read_text('{place}/secret.csv')",
        "select * from read_blob('{place}/secret.csv')",
        "select * from read_csv('{place}/secret.csv')",
        "select * from '{place}/secret.csv'",
        "select * from sniff_csv('{place}/secret.csv')",
        "select * from glob('{place}/*')",
        "select * from query_table('{place}/secret.csv')",
        "select * from parquet_scan('{run}/rank-0/blocks/part-00000.parquet')",
        "select getenv('HOME')",
        "call pragma_version()",
    ],
)
def test_no_other_file_is_read_or_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("key\n1234\n")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    result = ask(run, query.format(place=tmp_path, run=run))
    assert result.exit_code == 2, result.output
    assert "1234" not in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_python_variables_are_out_of_reach(run: Path) -> None:
    secret = read_run(run).rank().table("names")
    assert secret.num_rows
    with pytest.raises(Exception, match="secret does not exist"):
        ask_database(open_database(read_run(run)), "select * from secret")


@pytest.mark.parametrize(
    "query",
    [
        "selct 1",
        "select nope from blocks",
        "select 1; select 2",
        "",
        "select * from nope",
        "select 1/0 + 'x'",
        "\x1b[2J",
    ],
)
def test_a_wrong_query_is_one_line_and_a_hint(run: Path, query: str) -> None:
    result = ask(run, query)
    assert result.exit_code == 2
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("gpuledger: error: sql: ")
    assert second.startswith("  hint: ")
    assert "\x1b" not in result.stderr


def test_values_survive_json_and_csv(run: Path) -> None:
    query = "select path from modules where rank = 0 order by module_id"
    paths = [row["path"] for row in read_run(run).rank().table("modules").to_pylist()]
    assert [row["path"] for row in rows(run, query)] == paths
    found = csv.reader(io.StringIO(ask(run, query, "--csv").stdout, newline=""))
    assert [row[0] for row in found][1:] == paths


def test_json_numbers_are_whole_where_they_are_and_never_nan(run: Path) -> None:
    query = "select sum(address) as a, 1 as a, 'nan'::float as b, null as c, 2.5::decimal(4,1) d, [1] e from blocks"
    (row,) = rows(run, query)
    assert isinstance(row["a"], int)
    assert row | {"a": 0} == {"a": 0, "a_2": 1, "b": None, "c": None, "d": 2.5, "e": [1]}


def test_the_text_table_is_cut_and_says_so(run: Path) -> None:
    result = ask(run, "select category from blocks", "-n", "3")
    assert len(result.stdout.splitlines()) == 4
    assert "597 more rows" in result.stderr
    assert len(ask(run, "select category from blocks", "--csv").stdout.splitlines()) == 601


def test_a_table_too_wide_for_the_terminal_stands_upright(run: Path) -> None:
    lines = ask(run, "select * from counters limit 1", columns=60).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["rank", *TABLES["counters"].column_names]


def test_control_characters_are_shown_not_obeyed(run: Path) -> None:
    text = ask(run, "select path from modules").stdout
    assert r"nul\x00inside" in text
    assert "\x00" not in text


def test_an_empty_answer(run: Path) -> None:
    assert rows(run, "select 1 as a where false") == []
    assert ask(run, "select 1 as a where false").stdout == "a\n"


def test_json_and_csv_together_are_refused(run: Path) -> None:
    assert ask(run, "select 1", "--json", "--csv").exit_code == 2


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "bad.ledger", blocks=50)
    part = run / "rank-0" / "blocks" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:200])
    result = ask(run, "select 1")
    assert result.exit_code == 3
    assert "rank-0/blocks/part-00000.parquet: damaged part" in result.stderr


def limited(run: Path, query: str, *options: str) -> tuple[int, str]:
    """Return exit code and error of a query in a process of its own, which has to end."""
    command = [sys.executable, "-m", "gpuledger", "sql", str(run), query, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from range(10000000) a, range(10000000) b",
        "select * from range(1000000000000)",
        "with recursive t(a) as (select 1 union all select a + 1 from t) select max(a) from t",
    ],
)
def test_a_query_ends_with_its_time(run: Path, query: str) -> None:
    code, error = limited(run, query, "--timeout", "50ms")
    assert (code, "stopped after 0.05 s, the time limit" in error) == (1, True), error
    assert "--timeout" in error


def test_a_query_that_cannot_be_interrupted_ends_too(run: Path) -> None:
    slow = "select levenshtein(repeat('a', 400000), repeat('b', 400000))"
    code, error = limited(run, slow, "--timeout", "50ms")
    assert (code, "stopped after 0.05 s, the time limit" in error) == (1, True), error


@pytest.mark.parametrize(
    "query",
    [
        "select list(a.range) from range(1000000000) a",
        "select length(string_agg(repeat('x', 1000000), '')) from range(100000)",
        "select length(repeat(repeat('x', 1000000), 3000)) from range(2)",
        "select range(1000000000)",
    ],
)
def test_a_query_takes_no_more_than_its_memory(run: Path, query: str) -> None:
    code, error = limited(run, query, "--memory-limit", "256MiB", "--timeout", "20s")
    assert (code, "needs more than 256.0 MiB, the memory limit" in error) == (1, True), error


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from read_text('/etc/passwd')",
        "select * from glob('/etc/*')",
        "select getenv('HOME')",
        "select * from sqlite_scan('/tmp/x.db', 't')",
    ],
)
def test_a_query_reaches_no_file(run: Path, query: str) -> None:
    assert ask(run, query).exit_code == 2


@pytest.mark.parametrize(
    "setting", ["memory_limit = '100GB'", "enable_external_access = true", "temp_directory = '/tmp'"]
)
def test_a_locked_database_takes_no_setting(run: Path, setting: str) -> None:
    database = open_database(read_run(run))
    ask_database(database, "select 1")
    with pytest.raises(duckdb.Error, match="locked"):
        database.execute(f"SET {setting}")


@pytest.mark.parametrize(
    ("option", "value"), [("--timeout", "0s"), ("--timeout", "x"), ("--memory-limit", "1B"), ("--memory-limit", "lots")]
)
def test_a_limit_that_is_none_is_refused(run: Path, option: str, value: str) -> None:
    assert ask(run, "select 1", option, value).exit_code == 2
