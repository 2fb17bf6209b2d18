from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from synthetic import make_run

from gpuledger.cli.inspect import show
from gpuledger.cli.main import main, report_error
from gpuledger.errors import (
    BudgetExceededError,
    EmptyRunError,
    GpuLedgerError,
    InputError,
    NoDeviceError,
    UsageError,
)


def ask(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (GpuLedgerError, 1),
        (UsageError, 2),
        (InputError, 3),
        (EmptyRunError, 3),
        (NoDeviceError, 4),
        (BudgetExceededError, 5),
    ],
)
def test_errors_of_ours_have_their_exit_code(
    kind: type[GpuLedgerError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(kind("train.ledger: odd", hint="try again")) == code
    assert capsys.readouterr().err == "gpuledger: error: train.ledger: odd\n  hint: try again\n"


def test_a_disk_that_is_full_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out.csv")) == 1
    assert capsys.readouterr().err == "gpuledger: error: out.csv: No space left on device\n"


def test_a_defect_of_ours_asks_to_be_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(KeyError("segments")) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "gpuledger: error: KeyError: 'segments'"
    assert "report" in second


def test_messages_are_harmless_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    report_error(InputError("a\x1b[2J\nb: not a run"))
    assert capsys.readouterr().err == "gpuledger: error: a\\x1b[2J\\nb: not a run\n"


def test_an_interrupt_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> click.Command:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "get_command", interrupted)
    assert ask("show", "x").exit_code == 130


def test_verbose_shows_the_traceback() -> None:
    quiet, loud = ask("show", "nothing"), ask("-v", "show", "nothing")
    assert quiet.exit_code == loud.exit_code == 3
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert loud.stderr.endswith(quiet.stderr)


@pytest.mark.parametrize("words", [["--colour"], ["show"], ["show", "--colour"], ["shwo"], ["export", "x"]])
def test_usage_errors_are_one_line_and_a_hint(words: list[str]) -> None:
    result = ask(*words)
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("gpuledger: error: ")
    assert second.startswith("  hint: ")


def test_a_misspelt_command_is_told_the_near_one() -> None:
    assert "gpuledger balance" in ask("balnce").stderr


def test_the_suffix_may_be_left_out(tmp_path: Path) -> None:
    make_run(tmp_path / "one.ledger", blocks=50)
    assert ask("show", str(tmp_path / "one")).stdout == ask("show", str(tmp_path / "one.ledger")).stdout


EXPORT = ["export", "one", "--to", "csv", "--table", "blocks", "-o", "-"]


@pytest.mark.parametrize("words", [EXPORT, *map(str.split, ("show one", "diff one one", "gpus", "--help", "ops -h"))])
def test_a_closed_pipe_ends_a_command_quietly_as_sigpipe_would(words: list[str], tmp_path: Path) -> None:
    make_run(tmp_path / "one.ledger", blocks=2000)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    if words != EXPORT:  # of this one, a part is read
        os.close(reading)
    command = [sys.executable, "-m", "gpuledger", *words]
    with subprocess.Popen(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE) as child:
        os.close(writing)
        if words == EXPORT:
            assert os.read(reading, 10)
            os.close(reading)
        assert child.stderr is not None
        assert child.stderr.read() == b""
    assert child.returncode == 128 + signal.SIGPIPE


def test_a_connection_that_breaks_is_an_error_with_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe", "s3://bucket/train")

    monkeypatch.setattr(show, "open_each", breaks)
    make_run(tmp_path / "one.ledger", blocks=20)
    result = CliRunner().invoke(main, ["show", str(tmp_path / "one")])
    assert (result.exit_code, result.stderr) == (1, "gpuledger: error: s3://bucket/train: Broken pipe\n")


def test_a_message_of_several_lines_becomes_one() -> None:
    result = CliRunner().invoke(main, ["export", "train"])
    assert result.exit_code == 2
    message, hint = result.stderr.splitlines()
    assert message.startswith("gpuledger: error: missing option '--to'. Choose from: csv, parquet")
    assert hint == "  hint: gpuledger export --help"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["show", "--by"], "option '--by' requires an argument", "gpuledger show --help"),
        (["ops", "list", "--by"], "option '--by' requires an argument", "gpuledger ops list --help"),
        (["show", "--byy", "module", "train"], "no such option '--byy'", "Did you mean --by?"),
        (["run", "--setps", "2", "train.py"], "no such option '--setps'", "Did you mean --steps or --stacks?"),
        (["show", "--zzzz", "train"], "no such option '--zzzz'", "gpuledger show --help"),
        (["show", "train", "--fit", "24"], "--fit 24: a unit is missing", "For example 24GiB"),
        (["estimate", "--gpu-memory", "24", "--sm", "8.9", "-m", "x"], "--gpu-memory 24: a unit", "For example 24GiB"),
    ],
)
def test_an_error_of_an_option_says_what_to_do(words: list[str], message: str, hint: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert first.startswith(f"gpuledger: error: {message}")
    assert second == f"  hint: {hint}"


def test_a_script_without_a_command_has_run_in_its_hint() -> None:
    result = CliRunner().invoke(main, ["train.py", "--name", "a b"])
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].endswith(" run train.py --name 'a b'")


def test_a_run_of_nearly_that_name_is_the_hint(tmp_path: Path) -> None:
    make_run(tmp_path / "train.ledger", blocks=20)
    result = CliRunner().invoke(main, ["show", str(tmp_path / "trian")])
    assert result.exit_code == 3
    assert result.stderr.splitlines()[-1] == "  hint: Did you mean train.ledger?"


def test_ctrl_c_during_the_start_is_no_traceback() -> None:
    program = """
import sys
class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "click":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting)
from gpuledger.__main__ import start
start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
