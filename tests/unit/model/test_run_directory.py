"""The run's directory: where it goes, what is refused, what a damaged one says."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from synthetic import load_run

from gpuledger.cli.main import main
from gpuledger.errors import InputError, UsageError
from gpuledger.model.manifest import read_json
from gpuledger.model.run import read_run, write_table
from gpuledger.model.run_directory import choose_directory, rank_directories, write_json
from gpuledger.model.schema.tables import SCHEMA_VERSION, TABLES
from gpuledger.services.runs import load


def make_run(path: Path, *ranks: int) -> Path:
    for rank in ranks:
        (path / f"rank-{rank}").mkdir(parents=True)
        write_json(path / f"rank-{rank}" / "manifest.json", {"schema_version": SCHEMA_VERSION, "rank": rank})
    path.mkdir(exist_ok=True)
    write_json(path / "manifest.json", {"schema_version": SCHEMA_VERSION, "name": "é\ud800"})
    return path


def test_names_are_numbered_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.ledger", "train-2.ledger", "train-3.ledger"):
        path = choose_directory(None, force=False, stem="train")
        assert path == Path(name)
        path.mkdir()


def test_what_exists_is_not_overwritten_without_a_word(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a.ledger", 0)
    with pytest.raises(UsageError, match="already exists"):
        choose_directory(str(tmp_path / "a"), force=False, stem="x")
    assert choose_directory(str(path), force=True, stem="x") == path
    assert read_run(path).ranks


def test_what_is_no_run_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "a.ledger").mkdir()
    (tmp_path / "a.ledger" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not a run, so it is not overwritten"):
        choose_directory(str(tmp_path / "a"), force=True, stem="x")
    assert (tmp_path / "a.ledger" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "schema_version is missing"),
        ('{"schema_version": "1"}', "schema_version is missing"),
        ('{"schema_version": 999}', "schema version 999, but this gpuledger reads up to version"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_bad_input(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_json(tmp_path / "manifest.json")
    with pytest.raises(InputError):
        read_run(tmp_path)


def test_bytes_that_are_no_text_are_bad_input(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="not JSON"):
        read_json(tmp_path / "manifest.json")


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a.ledger", 10, 0, 2)
    for stray in ("rank-x", "rank-", "rank-1"):
        (path / stray).mkdir()
    (path / "rank-7").touch()
    run = read_run(path)
    assert run.manifest.name == "é\\ud800"  # what is no valid Unicode is read escaped
    assert [rank.number for rank in run.ranks] == [0, 2, 10]
    assert [number for number, _ in rank_directories(path)] == [0, 1, 2, 10]
    with pytest.raises(UsageError, match="no rank 1"):
        run.rank(1)
    assert not list(path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("missing", "no such run"),
        ("file", "a file, not a run"),
        ("folder", "not a run: manifest.json is missing"),
        ("empty", "an empty folder"),
    ],
)
def test_what_is_no_run_says_so(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=f"{place}: {words}") as found:
        read_run(tmp_path / place)
    assert found.value.hint == "Record a run with: gpuledger run train.py"


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_exported_folder_is_no_run_and_says_what_it_is(tmp_path: Path, form: str) -> None:
    load_run(tmp_path / "train.ledger", blocks=20)
    words = ["export", str(tmp_path / "train"), "--to", form, "-o", str(tmp_path / "tables")]
    assert CliRunner().invoke(main, words).exit_code == 0
    with pytest.raises(InputError, match="tables: tables that gpuledger export wrote, not a run") as found:
        read_run(tmp_path / "tables")
    assert found.value.hint == "Use the run that was exported, synthetic"


def test_the_hint_for_a_missing_run_names_the_runs_that_are_there(tmp_path: Path) -> None:
    for number in range(7):
        make_run(tmp_path / f"epoch{number}.ledger")
    (tmp_path / "zzz.ledger").mkdir()
    with pytest.raises(InputError) as found:
        read_run(tmp_path / "zzz")
    hint = str(found.value.hint)
    assert hint.startswith(f"Open one of the runs in {tmp_path.name}: epoch0.ledger, epoch1.ledger, ")
    assert hint.endswith("epoch4.ledger and 2 more")
    with pytest.raises(InputError, match=r"zzz\.ledger: an empty folder$") as empty:
        read_run(tmp_path / "zzz.ledger")
    assert empty.value.hint == hint, "a folder that is no run is not suggested, least of all itself"


def test_a_folder_that_is_no_run_is_not_examined_for_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(InputError, match=r"not a run: manifest\.json is missing"):
        read_run(tmp_path)
    with pytest.raises(InputError, match=r"not a run: manifest\.json is missing"):
        load(tmp_path)


def test_the_version_of_a_rank_names_its_run(tmp_path: Path) -> None:
    place = make_run(tmp_path / "a.ledger", 0)
    write_json(place / "rank-0" / "manifest.json", {"schema_version": 999})
    with pytest.raises(InputError, match=r"a\.ledger/rank-0: schema version 999"):
        read_run(place)


def test_tables_absent_damaged_or_of_other_columns(tmp_path: Path) -> None:
    rank = read_run(make_run(tmp_path / "a.ledger", 0)).rank()
    assert rank.table("blocks").num_rows == 0
    assert rank.table("blocks").schema.names == list(TABLES["blocks"].column_names)
    with pytest.raises(ValueError, match="blocks: columns"):
        write_table(rank.directory, rank.table("names"), "blocks")
    write_table(rank.directory, rank.table("names"), "names")
    write_table(rank.directory, rank.table("blocks"), "blocks")
    (rank.directory / "blocks" / "part-00000.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(InputError, match="blocks"):
        rank.table("blocks")
    (rank.directory / "names" / "part-00000.parquet").rename(rank.directory / "blocks" / "part-00000.parquet")
    with pytest.raises(InputError, match="blocks"):
        rank.table("blocks")


def test_a_table_is_read_in_the_thread_that_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of pyarrow's that still holds a Python stream as the process ends would abort it."""
    rank = load_run(tmp_path / "a.ledger").rank()
    reading: set[int] = set()

    class Stream(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            reading.add(threading.get_ident())
            return super().readinto(buffer)

        def read(self, size: int | None = -1) -> Any:
            reading.add(threading.get_ident())
            return super().read(size)

    monkeypatch.setattr("gpuledger.model.parquet_parts.open_regular", Stream)
    assert rank.table("blocks").num_rows
    assert reading == {threading.get_ident()}
