"""``gpuledger import`` on the formats of the name-giving profilers: what it writes, says and returns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from folders import DATA
from imports import check_views, rows
from snapshots import dumped, event, segment, snapshot

from gpuledger.cli.main import main
from gpuledger.formats.readers import files_inside
from gpuledger.model.run import read_run


def run_import(*words: object) -> Result:
    return CliRunner().invoke(main, ["import", *(str(word) for word in words)])


@pytest.mark.parametrize(
    ("format_name", "place", "names"),
    [
        ("mxnet", "mxnet", 5),
        ("tbd-log", "tbd", 2),
        ("tbd-log", "tbd/memory_analysis", 1),
        ("memory-csv", "memory_csv", 2),
    ],
)
def test_each_file_of_a_folder_becomes_a_run_on_which_every_view_works(
    format_name: str, place: str, names: int, tmp_path: Path
) -> None:
    result = run_import(format_name, DATA / place, "--out", tmp_path / "old")
    assert result.exit_code == 0, result.output
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert len(paths) == names
    assert "Traceback" not in result.stderr
    for path in paths:
        assert len(read_run(path).ranks) == 1
        check_views(path, tmp_path)


def test_files_with_process_ids_are_the_ranks_of_one_run(tmp_path: Path) -> None:
    for pid in (98, 4321):
        shutil.copy(DATA / "mxnet" / f"gpu_memory_profile-pid_{pid}.csv", tmp_path)
    result = run_import("mxnet", tmp_path, "--out", tmp_path / "old")
    assert result.stdout == f"{tmp_path / 'old.ledger'}\n"
    assert len(read_run(tmp_path / "old.ledger").ranks) == 2


def test_a_snapshot_becomes_a_run(tmp_path: Path) -> None:
    shown = segment(0, 1 << 40, [(2 << 20, 5, 1)])
    path = tmp_path / "snap.pickle"
    path.write_bytes(dumped(snapshot([shown], [event(0, "alloc", 1 << 40, 5), event(1, "snapshot", 0, 0)])))
    result = run_import("torch-snapshot", path, "--out", tmp_path / "old")
    assert result.exit_code == 0, result.output
    assert [row["requested_bytes"] for row in rows(read_run(tmp_path / "old.ledger").rank())] == [5]


def test_a_bad_line_is_named_the_rest_kept_and_the_exit_code_is_3(tmp_path: Path) -> None:
    path = tmp_path / "gpu_memory_profile-pid_4.csv"
    good = (DATA / "mxnet" / "gpu_memory_profile-pid_98.csv").read_text()
    path.write_text(good + '"net:in_arg:w","-5","0","512","0"\n')
    result = run_import("mxnet", path, "--out", tmp_path / "old")
    assert result.exit_code == 3
    assert "line 6" in result.stderr
    assert len(rows(read_run(tmp_path / "old.ledger").rank())) == 2


@pytest.mark.parametrize("format_name", ["mxnet", "tbd-log", "memory-csv", "torch-snapshot"])
@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"hello\n", b"\xff\xfe\x00"], ids=repr)
def test_a_wrong_file_is_one_line_and_3(format_name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_bytes(content)
    result = run_import(format_name, tmp_path / "wrong", "--out", tmp_path / "old")
    assert result.exit_code == 3, result.output
    assert "wrong" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "old.ledger").exists()


@pytest.mark.parametrize("format_name", ["mxnet", "tbd-log", "memory-csv", "torch-snapshot"])
def test_a_missing_file_and_an_option_of_another_format(format_name: str, tmp_path: Path) -> None:
    assert run_import(format_name, tmp_path / "nowhere").exit_code == 3
    (tmp_path / "file").write_text("x")
    assert run_import(format_name, tmp_path / "file", "--interval", "1ms").exit_code == 2


def test_of_a_folders_files_those_that_look_like_a_known_one_and_are_not_are_named(tmp_path: Path) -> None:
    shutil.copy(DATA / "mxnet" / "gpu_memory_profile-pid_98.csv", tmp_path / "known.csv")
    for name, text in (("empty.csv", ""), ("other.csv", "a, b\n"), ("beside.txt", "not similar\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "lost.csv").symlink_to(tmp_path / "nowhere")
    found = files_inside(tmp_path, "mxnet")
    assert found.known == (tmp_path / "known.csv",)
    assert found.unread[0] == f"{tmp_path / 'empty.csv'}: empty, so no mxnet file"
    assert found.unread[1].startswith(f"{tmp_path / 'lost.csv'}: ")
    assert found.unread[2:] == (f"{tmp_path / 'other.csv'}: line 1: not of format mxnet",)
