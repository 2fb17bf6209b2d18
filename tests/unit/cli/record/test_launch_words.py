"""The command line: which words are ours, what the run is called, and which words are not kept."""

from __future__ import annotations

import ast
import os
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.cli.common import split_line
from gpuledger.cli.main import main
from gpuledger.cli.ops.capture import capture_command
from gpuledger.cli.predict.estimate import estimate_command
from gpuledger.cli.record.run import run_command
from gpuledger.cli.scripts import command_of, misplaced_options, refuse_other_programs, with_installed_script
from gpuledger.collect.launch.bootstrap import bootstrap_directory
from gpuledger.errors import UsageError
from gpuledger.redact import HIDDEN, hide_credentials, redact

OURS = st.sampled_from([["-q"], ["--force"], ["--steps", "1:2"], ["--out", "x"], ["--no-stacks"], ["--out=-m"]])
VALUES = {word for one in run_command.params for word in one.opts if not getattr(one, "is_flag", False)}
PROGRAMS = st.sampled_from([["train.py"], ["-m", "pack"], ["--", "sh", "-c"], ["-"]])


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("export A=1 HF_TOKEN=s3cret; python a.py --lr 1", f"export A=1 HF_TOKEN={HIDDEN} python a.py --lr 1"),
        ("python a.py --password s3cret  --lr 1", f"python a.py --password {HIDDEN}  --lr 1"),
        ("X-Api-Key: s3cret", f"X-Api-Key: {HIDDEN}"),
        ("Authorization: Basic s3cret", f"Authorization: Basic {HIDDEN}"),
        ('{"api_key": "s3cret", "lr": 1}', f'{{"api_key": {HIDDEN} "lr": 1}}'),
        ("host=h password=s3cret dbname=d", f"host=h password={HIDDEN} dbname=d"),
        ("password=s3cret and more", f"password={HIDDEN}"),
        ("a text with two  spaces", "a text with two  spaces"),
    ],
)
def test_secrets_inside_an_argument_are_not_kept(argument: str, kept: str) -> None:
    assert redact(["bash", "-c", argument]) == ["bash", "-c", kept]


def test_messages_lose_credentials_and_nothing_else() -> None:
    assert hide_credentials("operator key: not an object, tokens: 3") == "operator key: not an object, tokens: 3"
    for secret in ("x://a:s3cret@h", "x://h?password=s3cret", "host=h password='s3 cret' x", "PGPASSWORD=s3cret"):
        assert "s3" not in hide_credentials(f"{secret}: cannot be reached")
        assert hide_credentials(f"{secret}: cannot be reached").endswith("reached")


def test_a_long_word_is_redacted_at_once() -> None:
    begun = time.process_time()
    for word in ("a" * 50_000, "a=" * 25_000, "x://" * 12_000, "key" * 17_000, "-.-" * 17_000, "https://" * 6_000):
        redact([word, f"{word} {word}"])
    assert time.process_time() - begun < 20


@given(ours=st.lists(OURS), program=PROGRAMS, arguments=st.lists(st.text()))
def test_the_programs_words_are_its_own(ours: list[list[str]], program: list[str], arguments: list[str]) -> None:
    options = [word for group in ours for word in group]
    assert split_line([*options, *program, *arguments], VALUES) == (options, [*program, *arguments])


@pytest.mark.parametrize("command", [run_command, estimate_command, capture_command])
def test_every_option_with_a_value_takes_the_next_word(command: click.Command) -> None:
    options = [one for one in command.params if isinstance(one, click.Option)]
    with_value = {text for one in options if not one.is_flag for text in one.opts}
    for option in options:
        ours = [option.opts[-1]] if option.is_flag else [option.opts[-1], "train.py"]
        assert split_line([*ours, "train.py", "-q"], with_value) == (ours, ["train.py", "-q"])


@pytest.mark.parametrize(
    ("program", "command", "stem"),
    [
        (["dir/train.py", "-m"], [sys.executable, "dir/train.py", "-m"], "train"),
        (["-m", "pack.fit", "-q"], [sys.executable, "-m", "pack.fit", "-q"], "fit"),
        (["--", "./launch.sh", "--"], ["./launch.sh", "--"], "launch"),
        (["-"], [sys.executable, "-"], "stdin"),
        (["/"], [sys.executable, "/"], "run"),
    ],
)
def test_command_and_name(program: list[str], command: list[str], stem: str) -> None:
    assert command_of(program) == (tuple(command), stem)


def test_a_directory_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    assert command_of(["."])[1] == "project"


@pytest.mark.parametrize(
    ("program", "message", "hint"),
    [
        (["train", "a b"], "train: no such script", "gpuledger run train.py 'a b'"),
        (["tarin.py"], "tarin.py: no such script", "Did you mean train.py?"),
        (["zzz9.py"], "zzz9.py: no such script", ""),
        (["other"], "other: no such script or command", ""),
        (["cells.ipynb"], "cells.ipynb: a notebook is not a script", "jupyter nbconvert --to script cells.ipynb"),
        (["job", "x"], "job: this is a shell script, not a Python script", "gpuledger run bash job x"),
        (["./job"], "./job: this is a shell script, not a Python script", "gpuledger run bash ./job"),
    ],
)
def test_what_is_no_script_has_the_right_words_in_its_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: list[str], message: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda word: "/usr/bin/train" if word == "train" else None)
    for name in ("train.py", "cells.ipynb"):
        Path(name).touch()
    Path("job").write_text("#!/usr/bin/env bash\npython train.py\n")
    with pytest.raises(UsageError) as refused:
        refuse_other_programs(program, "gpuledger run", runs_commands=True)
    assert refused.value.message == message
    assert (refused.value.hint or "").startswith(hint)


@pytest.mark.parametrize(
    ("program", "command", "stem"),
    [
        (
            ["torchrun", "--nproc-per-node", "2", "train.py"],
            ["torchrun", "--nproc-per-node", "2", "train.py"],
            "torchrun",
        ),
        (["job.sh", "x"], ["./job.sh", "x"], "job"),
        (["./job.sh"], ["./job.sh"], "job"),
        (["known"], [sys.executable, "known"], "known"),
    ],
)
def test_a_command_needs_no_dashes_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: list[str], command: list[str], stem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda word: f"/usr/bin/{word}" if word in ("torchrun", "known") else None)
    Path("job.sh").write_text("#!/bin/sh\npython train.py\n")
    Path("job.sh").chmod(0o755)
    Path("known").write_text("import torch\n")  # a script of that name comes first
    refuse_other_programs(program, "gpuledger run", runs_commands=True)
    assert command_of(program) == (tuple(command), stem)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "import torch"),
        ("train", "#!/usr/bin/env python3"),
        ("train", "#!/usr/bin/env -S uv run --script"),
        ("both.py", "#!/bin/sh\n'exec' python3 $0"),
        ("-", ""),
        (".", ""),
    ],
)
def test_what_python_runs_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    if text:
        Path(name).write_text(text)
    refuse_other_programs([name], "gpuledger run", runs_commands=True)


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("#!{python}\nimport torch\n", True),
        ("#!/elsewhere/python\n", False),  # another environment can have other packages
        ("#!{beside}\n", False),
        ("no script", False),
    ],
)
def test_an_installed_script_is_found_where_only_scripts_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, known: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "bin" / "tool"
    place.parent.mkdir()
    place.write_text(text.format(python=sys.executable, beside=Path(sys.executable).with_name("sh")))
    place.chmod(0o755)
    monkeypatch.setenv("PATH", str(place.parent))
    found = str(place) if known else "tool"
    assert with_installed_script(("tool", "--epochs", "1")) == (found, "--epochs", "1")
    for other in ((), ("-m", "tool"), ("./tool",), ("missing",)):
        assert with_installed_script(other) == other
    Path("tool.py").touch()  # the user means this one, and a hint says so
    assert with_installed_script(("tool",)) == ("tool",)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    refuse_other_programs([str(tmp_path / "pipe")], "gpuledger run")


@pytest.mark.parametrize("program", [[], ["--"], ["-m"]])
def test_nothing_to_run(program: list[str]) -> None:
    with pytest.raises(UsageError):
        command_of(program)


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("--api-key s3cret --lr 1", f"--api-key {HIDDEN} --lr 1"),
        ("--HF_TOKEN=s3cret x", f"--HF_TOKEN={HIDDEN} x"),
        ("-password -s3cret", f"-password {HIDDEN}"),
        ("--use-token --epochs 2", "--use-token --epochs 2"),
        ("wandb.secret=s3cret", f"wandb.secret={HIDDEN}"),
        ("env WANDB_API_KEY=s3cret python a.py", f"env WANDB_API_KEY={HIDDEN} python a.py"),
        ("train.py --keep a=b=c", "train.py --keep a=b=c"),
        ("--token", "--token"),
        ("--pwd s3cret", f"--pwd {HIDDEN}"),
        ("--pwd=s3cret", f"--pwd={HIDDEN}"),
        ("-p s3cret train.py", f"-p {HIDDEN} train.py"),
        ("-ps3cret train.py", f"-p{HIDDEN} train.py"),
        ("-p=s3cret train.py", f"-p{HIDDEN} train.py"),
        ("--dsn postgresql://me@h/db", f"--dsn {HIDDEN}"),
        ("--auth=me:s3cret", f"--auth={HIDDEN}"),
        ("--header X-Auth:s3cret", f"--header {HIDDEN}"),
        ("-H X-Api-Key:s3cret", f"-H X-Api-Key:{HIDDEN}"),
        ("Authorization: Bearer s3cret x", f"Authorization: Bearer {HIDDEN} x"),
        ("Bearer s3cret", f"Bearer {HIDDEN}"),
        ("DB_PWD=s3cret dbPwd=s3cret", f"DB_PWD={HIDDEN} dbPwd={HIDDEN}"),
        ("--env=HF_TOKEN=s3cret --env HF_TOKEN=s3cret", f"--env=HF_TOKEN={HIDDEN} --env HF_TOKEN={HIDDEN}"),
        ("-u me:s3cret --user=me:s3cret --user me", f"-u me:{HIDDEN} --user=me:{HIDDEN} --user me"),
        ("--db postgresql://me:s3@cr/et@h/db", f"--db postgresql://me:{HIDDEN}@h/db"),
        ("--db=redis://:s3cret@h", f"--db=redis://:{HIDDEN}@h"),
        ("https://s3cret@git.h/x", f"https://{HIDDEN}@git.h/x"),
        ("postgresql://h/db?user=me&password=s3cret&x=1", f"postgresql://h/db?user=me&password={HIDDEN}&x=1"),
        ("s3://b/x?X-Amz-Signature=s3cret", f"s3://b/x?X-Amz-Signature={HIDDEN}"),
        ("--path data --compass x --lr=0.1 -m pkg.mod", "--path data --compass x --lr=0.1 -m pkg.mod"),
        ("--passes memory,energy --spin 3 key", "--passes memory,energy --spin 3 key"),
        ("postgresql://me@h/db a:b http://h:80/a@b", "postgresql://me@h/db a:b http://h:***@b"),
    ],
)
def test_secrets_are_not_kept(line: str, kept: str) -> None:
    assert redact(line.split(" ")) == kept.split(" ")


@given(st.lists(st.text()))
def test_redaction_keeps_the_number_of_words(arguments: list[str]) -> None:
    assert len(redact(arguments)) == len(arguments)


@pytest.mark.parametrize("version", [(3, 7), (3, 11)])
def test_the_start_up_file_is_parsed_by_old_pythons(version: tuple[int, int]) -> None:
    source = (Path(bootstrap_directory()) / "sitecustomize.py").read_text(encoding="ascii")
    tree = ast.parse(source, feature_version=version)
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.Nonlocal)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert not [node for node in ast.walk(tree) if isinstance(node, newer)]
    assert not [node for node in functions if node.returns or node.args.kwonlyargs]


def test_the_start_up_file_imports_only_the_standard_library_and_then_what_collects() -> None:
    tree = ast.parse((Path(bootstrap_directory()) / "sitecustomize.py").read_text())
    names = {
        alias.name.partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    assert names - {"imp"} <= sys.stdlib_module_names
    sources = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert sources
    ours = [source or "" for source in sources if (source or "").partition(".")[0] not in sys.stdlib_module_names]
    assert all(source.startswith("gpuledger.collect.") for source in ours)


OPTIONS = ("--gpu", "--out", "--find-batch", "-q")


@pytest.mark.parametrize(
    ("source", "words", "found"),
    [
        ("gpu = 3", ["--gpu", "H100", "--out=x", "-q", "--gpu", "1"], ["--gpu", "--out"]),
        ("parser.add_argument('--gpu')", ["--gpu", "H100", "--out", "x"], ["--out"]),
        ("def main(gpu, *, find_batch=1): pass", ["--gpu", "0", "--find-batch", "2"], []),
        ("class Args:\n  gpu: int = 0", ["--gpu", "0"], []),
        ("import options\nx: int = 3", ["--gpu", "0"], []),
        ("from .options import parse", ["--gpu", "0"], []),
        ("import torch, os.path", ["--epochs", "3", "--gpu"], ["--gpu"]),
        ("this is no Python", ["--gpu"], []),
    ],
)
def test_options_after_a_script_that_does_not_have_them(
    source: str, words: list[str], found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "options.py").touch()
    script = tmp_path / "train.py"
    script.write_text(source)
    assert misplaced_options(OPTIONS, [str(script), *words]) == found
    assert misplaced_options(OPTIONS, ["-m", "train", *words]) == []


def test_an_option_after_the_script_is_told_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit(2)")
    told = CliRunner().invoke(main, ["estimate", "train.py", "--gpu", "H100"])
    assert told.stderr.startswith(
        "gpuledger: --gpu is an argument of the script here: options of gpuledger stand before it\n"
    )
