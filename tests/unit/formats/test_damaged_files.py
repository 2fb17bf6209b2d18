"""Files that were cut, joined or mixed with other output: what is whole is read, the rest is named with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from folders import DATA

from gpuledger.cli.main import main

MIB = 1 << 20
FILES = {
    "mxnet, two columns": DATA / "mxnet" / "mxnet_gpu_memory_profiler.csv",
    "mxnet, seven columns": DATA / "mxnet" / "mxnet_gpu_memory_profiler_alloc.csv",
    "mxnet, five columns": DATA / "mxnet" / "gpu_memory_profile-pid_4321.csv",
    "memory_csv": DATA / "memory_csv" / "20200405120000.csv",
    "tbd": DATA / "tbd" / "sockeye.log",
    "nvidia-smi": DATA / "nvidia_smi" / "memory_cudnn.txt",
    "time log": DATA / "time_log" / "logALEX.txt",
}
CUT = {
    "mxnet, two columns": "data_entry:encoder_rnn_l0",
    "mxnet, seven columns": '1583020800,"net:","dense0_wei',
    "mxnet, five columns": '"init:_random_uniform","335',
    "memory_csv": "1,9,0,0,1,8,4",
    "tbd": "[mem] Allocate 20971",
    "nvidia-smi": "62",
    "time log": "FFT, 8, CONV, 10.1",
}
WARNING = (
    "/usr/lib/python3/site-packages/mxnet/base.py:37: FutureWarning: `np.bool` is deprecated, use `bool`\n"
    "  warnings.warn(msg, FutureWarning)\n"
)


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / FILES[name].name
    path.write_text(text, encoding="utf-8")
    return path


def shown(path: Path) -> tuple[int, str, str]:
    """Return exit status, what is printed beyond the name of the run, and what was not read."""
    found = ask("show", path)
    return found.exit_code, found.stdout.replace(str(path.parent), ""), found.stderr


@pytest.mark.parametrize("name", [name for name in FILES if name != "tbd"])
def test_warnings_between_rows_are_named_with_their_lines_and_change_nothing(name: str, tmp_path: Path) -> None:
    lines = FILES[name].read_text("utf-8").splitlines(keepends=True)
    place = len(lines) // 2
    path = written(tmp_path, name, "".join([*lines[:place], WARNING, *lines[place:]]))
    status, text, unread = shown(path)
    assert status == 3
    assert f"{path.name}: line {place + 1:,}: " in unread
    _, whole, _ = shown(written(tmp_path, name, "".join(lines)))
    assert text == whole


def test_output_of_the_program_between_the_lines_of_a_log_is_no_part_of_it(tmp_path: Path) -> None:
    lines = FILES["tbd"].read_text("utf-8").splitlines(keepends=True)
    _, whole, _ = shown(written(tmp_path, "tbd", "".join(lines)))
    status, text, unread = shown(written(tmp_path, "tbd", "".join([*lines[:2], WARNING, *lines[2:]])))
    assert (status, text, "not read" in unread) == (0, whole, False)


@pytest.mark.parametrize(("name", "cut"), CUT.items())
def test_a_table_that_is_cut_inside_a_row_loses_that_row_alone(name: str, cut: str, tmp_path: Path) -> None:
    text = FILES[name].read_text("utf-8").rstrip("\n") + "\n"
    _, whole, _ = shown(written(tmp_path, name, text))
    path = written(tmp_path, name, text + cut)
    status, kept, unread = shown(path)
    assert (status, kept) == (3, whole)
    assert f"{path.name}: line {len(text.splitlines()) + 1:,}: " in unread


@pytest.mark.parametrize("name", ["mxnet, five columns", "mxnet, seven columns"])
def test_a_second_table_is_not_counted_on_top_of_the_first(name: str, tmp_path: Path) -> None:
    text = FILES[name].read_text("utf-8")
    rows = len(text.splitlines())
    _, whole, _ = shown(written(tmp_path, name, text))
    status, both, unread = shown(written(tmp_path, name, text + text))
    assert (status, both) == (3, whole)
    reason = f"line {rows + 1}: a second table; its {rows - 1} rows would count the same memory again"
    assert reason in unread


def test_a_second_tree_of_a_device_is_not_counted_on_top_of_the_first(tmp_path: Path) -> None:
    text = (DATA / "mxnet_written" / "gpu_memory_profile.json").read_text("utf-8")
    path = tmp_path / "gpu_memory_profile.json"
    path.write_text(text + text, encoding="utf-8")
    found = ask("show", path, "--json")
    assert found.exit_code == 3
    assert json.loads(found.stdout)["allocated_bytes"] == 384 * MIB
    assert "a second tree of device 0 would count its memory again" in found.stderr


def test_a_second_csv_of_the_memory_profiler_continues_the_steps_if_its_columns_are_the_same(tmp_path: Path) -> None:
    text = FILES["memory_csv"].read_text("utf-8")
    rows = len(text.splitlines())
    again = ask("show", written(tmp_path, "memory_csv", text + text), "--step", 2 * (rows - 1))
    assert (again.exit_code, f"in step {2 * (rows - 1)}" in again.stdout) == (3, True)
    assert f"line {rows + 1}: the header again; its rows follow as more steps" in again.stderr
    other = written(tmp_path, "memory_csv", text + text.replace("0.weight,", "9.weight,"))
    status, kept, unread = shown(other)
    assert f"line {rows + 1}: a second table with other columns; its {rows - 1} rows are not read" in unread
    assert (status, kept) == (3, shown(written(tmp_path, "memory_csv", text))[1])


@pytest.mark.parametrize("command", ["show", "group", "compare", "plot", "report", "balance"])
def test_an_empty_folder_is_an_error_that_names_it(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    found = ask(command, folder)
    assert (found.exit_code, found.stdout) == (3, "")
    assert f"{folder}: an empty folder" in found.stderr
