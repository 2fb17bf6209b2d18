"""``gpuledger import``, and files of an older format in the place of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from folders import DATA
from present import present

from gpuledger.cli.main import main
from gpuledger.formats.readers import FORMATS
from gpuledger.model.run import read_run

LOGS = DATA / "nvidia_smi"
HEADER = "memory.used [MiB]\n"


def ask(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_file_becomes_a_run_of_its_name(here: Path) -> None:
    result = ask("import", "nvidia-smi", LOGS / "memory_cudnn.txt")
    assert (result.exit_code, result.stdout) == (0, "memory_cudnn.ledger\n")
    assert "10 ms apart. Set another interval with gpuledger import nvidia-smi --interval." in result.stderr
    run = read_run(here / "memory_cudnn.ledger")
    assert present(run.manifest.imported).format == "nvidia-smi"
    assert len(run.table("samples")) == 720
    assert ask("import", "nvidia-smi", LOGS / "memory_cudnn.txt").stdout == "memory_cudnn-2.ledger\n"


def test_several_files_become_a_run_each_in_a_folder(here: Path) -> None:
    result = ask("import", "nvidia-smi", *sorted(LOGS.glob("*.txt")), "--out", "old")
    assert result.exit_code == 0
    assert result.stdout.split() == [f"old/{path.stem}.ledger" for path in sorted(LOGS.glob("*.txt"))]


def test_a_folder_stands_for_the_files_in_it(here: Path) -> None:
    result = ask("import", "nvidia-smi", LOGS)
    assert result.exit_code == 0
    assert len(result.stdout.split()) == 5


def test_what_exists_is_refused_and_force_replaces_it_only_when_the_file_can_be_read(here: Path) -> None:
    words = ("import", "nvidia-smi", LOGS / "memory_fft.txt", "--out", "fft")
    assert ask(*words).exit_code == 0
    refused = ask(*words)
    assert refused.exit_code == 2
    assert "already exists" in refused.stderr
    assert ask(*words, "--force").exit_code == 0
    (here / "empty.txt").touch()
    assert ask("import", "nvidia-smi", "empty.txt", "--out", "fft", "--force").exit_code == 3
    assert len(read_run(here / "fft.ledger").table("samples")) == 2254


def test_what_cannot_be_read_is_named_and_the_rest_kept_with_3(here: Path) -> None:
    (here / "good.txt").write_text(HEADER + "1 MiB\n?\n2 MiB\n")
    (here / "empty.txt").touch()
    result = ask("import", "nvidia-smi", "empty.txt", "good.txt", "missing.txt")
    assert (result.exit_code, result.stdout) == (3, "good.ledger\n")
    for part in ("empty.txt: empty", "good.txt: line 3: '?'", "missing.txt: No such file"):
        assert f"not read: {part}" in result.stderr
    assert read_run(here / "good.ledger").table("samples").column("used_bytes").to_pylist() == [1 << 20, 2 << 20]


def test_nothing_readable_is_an_error_in_one_line(here: Path) -> None:
    (here / "empty.txt").touch()
    result = ask("import", "nvidia-smi", "empty.txt")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "gpuledger: error: empty.txt: empty\n"
    assert not list(here.glob("*.ledger"))


def test_two_files_of_one_name_are_refused(here: Path) -> None:
    for folder in ("a", "b"):
        (here / folder).mkdir()
        (here / folder / "log.txt").write_text(HEADER + "1 MiB\n")
    result = ask("import", "nvidia-smi", "a/log.txt", "b/log.txt")
    assert result.exit_code == 2
    assert "b/log.txt: the run would have the same name as that of a/log.txt" in result.stderr


def test_a_format_and_its_options_are_checked(here: Path) -> None:
    unknown = ask("import", "nvidia", LOGS / "memory_fft.txt")
    assert unknown.exit_code == 2
    assert "nvidia-smi" in unknown.stderr
    strange = ask("import", "time-log", DATA / "time_log" / "logVGG.txt", "--interval", "10ms")
    assert (strange.exit_code, "--interval does not apply to this format" in strange.stderr) == (2, True)


def test_help_lists_every_format_with_its_options() -> None:
    text = ask("import", "--help").stdout
    for name, one in FORMATS.items():
        assert name in text
        assert all(option.flag in text for option in one.options)


@pytest.mark.parametrize("command", ["plot", "compare"])
def test_older_files_stand_for_runs_and_bad_ones_are_skipped_with_3(here: Path, command: str) -> None:
    (here / "broken.txt").write_bytes(b"\x00\xff\n")
    (here / "good.txt").write_text(HEADER + "0 MiB\n5 MiB\n0 MiB\n")
    options = ("-o", "x.png") if command == "plot" else ("--json",)
    result = ask(command, "broken.txt", "good.txt", "gone.txt", *options)
    assert result.exit_code == 3
    assert "not read: broken.txt" in result.stderr
    assert "not read: gone.txt" in result.stderr
    if command == "plot":
        assert (here / "x.png").stat().st_size > 10_000
    else:
        assert [row["name"] for row in json.loads(result.stdout)] == ["good"]


def test_a_line_that_cannot_be_read_makes_3_where_the_file_stands_for_a_run(here: Path) -> None:
    (here / "cut.txt").write_text(HEADER + "0 MiB\n5 MiB\n6")
    result = ask("compare", "cut.txt", "--json")
    assert result.exit_code == 3
    assert "cut.txt: line 4: cut off" in result.stderr
    assert json.loads(result.stdout)[0]["peak_bytes"] == 5 << 20


def test_only_bad_files_are_an_error(here: Path) -> None:
    (here / "broken.txt").write_bytes(b"\x00\xff\n")
    result = ask("compare", "broken.txt")
    assert (result.exit_code, result.stdout) == (3, "")


def test_a_command_for_allocations_says_what_the_log_is_good_for() -> None:
    result = ask("balance", LOGS / "memory_fft.txt")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "gpuledger plot RUN" in result.stderr


def test_a_folder_of_several_runs_is_not_one_run() -> None:
    result = ask("report", LOGS)
    assert result.exit_code == 2
    assert "a folder of 5 runs, but one run is expected" in result.stderr
    assert f"Name one of them, for example {LOGS / 'memory_cudnn.txt'}" in result.stderr


def test_a_folder_with_one_file_stands_for_it(here: Path) -> None:
    (here / "logs").mkdir()
    (here / "logs" / "only.txt").write_text(HEADER + "0 MiB\n5 MiB\n0 MiB\n")
    result = ask("export", "logs", "--to", "csv", "--table", "samples", "-o", "-")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 4)
