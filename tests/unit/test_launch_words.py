"""The command line: which words are ours, what the run is called, and which words are not kept."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.cli.run import command_of, split_line
from gpuledger.collect.bootstrap import bootstrap_directory
from gpuledger.collect.redact import HIDDEN, redact
from gpuledger.errors import UsageError

OURS = st.sampled_from([["-q"], ["--force"], ["--steps", "1:2"], ["--out", "x"], ["--no-stacks"], ["--out=-m"]])
PROGRAMS = st.sampled_from([["train.py"], ["-m", "pack"], ["--", "sh", "-c"], ["-"]])


@given(ours=st.lists(OURS), program=PROGRAMS, arguments=st.lists(st.text()))
def test_the_programs_words_are_its_own(ours: list[list[str]], program: list[str], arguments: list[str]) -> None:
    options = [word for group in ours for word in group]
    assert split_line([*options, *program, *arguments]) == (options, [*program, *arguments])


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
    assert all((source or "").startswith("gpuledger.collect.") for source in sources)
