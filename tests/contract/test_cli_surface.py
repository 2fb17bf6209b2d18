"""Commands, options, help and exit codes: a change here is a change for every script that calls us."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from gpuledger import __version__
from gpuledger.cli.main import COMMANDS, main

SURFACE = {
    "run": "--steps --step-on --passes --until-end --out --force --stacks --no-stacks --flight-recorder"
    " --no-flight-recorder --devices --ranks --repeat --live -q --quiet",
    "watch": "--interval --gpu --out --force --pid --variants --vary --repeat -q --quiet",
    "estimate": "--gpu --steps --confidence --alloc-conf --require-fit --find-batch --out --force -q --quiet --json"
    " --gpu-memory --sm --fit --batch-argument --world-size --find-world-size --ranks",
    "what-if": "--rank --device --json",
    "gpus": "--json",
    "ops": "",
    "show": "--by --at --step -n --depth --sort --fold --per-sample --unknown --fit --rank --device --json",
    "group": "--keywords --reported-memory -n --write-keywords --force --at --step --rank --device --json",
    "balance": "--at --rank --device --json",
    "report": "-o --output --open --fit --rank --force",
    "trace": "-o --output --rank --force",
    "plot": "--kind --metric --align --baseline --per --keywords --reported-memory --min-share --title -o --output"
    " --format --force",
    "live": "--pid --once",
    "compare": "--json --csv --markdown",
    "diff": "--by --at --step -n --depth --rank --device --json --html --force",
    "check": "--budget --against --allow --no-growth --json --junit --markdown --force",
    "budget": "--headroom -o --output --force",
    "import": "--out --force --interval --columns",
    "export": "--to --table -o --output --force",
    "merge": "--out --force --ranks --ray",
    "sql": "--json --csv --memory-limit --timeout -n",
    "doctor": "--json",
    "calibrate": "--json",
}
HELP_LIMIT_S = 0.5


def command(name: str) -> click.Command:
    found = main.get_command(click.Context(main), name)
    assert found is not None
    return found


def examples(name: str) -> list[str]:
    epilog = command(name).epilog or ""
    return [line.strip() for line in epilog.splitlines() if line.strip().startswith("gpuledger ")]


def test_the_commands_are_these() -> None:
    assert list(COMMANDS) == list(SURFACE)


@pytest.mark.parametrize("name", SURFACE)
def test_the_options_are_these(name: str) -> None:
    options = [one for one in command(name).params if isinstance(one, click.Option)]
    assert {text for one in options for text in (*one.opts, *one.secondary_opts)} == set(SURFACE[name].split())


@pytest.mark.parametrize("name", SURFACE)
def test_help_ends_with_two_examples_that_parse(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    found = examples(name)
    assert len(found) == 2
    assert [line.strip() for line in result.stdout.splitlines()[-2:]] == found
    for line in found:
        program, sub_command, *words = shlex.split(line.partition(" | ")[0])
        assert (program, sub_command) == ("gpuledger", name)
        command(name).make_context(name, words)


@pytest.mark.parametrize("name", SURFACE)
def test_every_option_has_a_help_text(name: str) -> None:
    assert all(one.help for one in command(name).params if isinstance(one, click.Option))
    assert COMMANDS[name].summary.endswith(".")


def test_the_list_of_commands_is_grouped() -> None:
    text = CliRunner().invoke(main, ["--help"]).stdout
    sections = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert sections[:1] == ["Options"]
    assert [section for section in sections if section != "Options"] == list(
        dict.fromkeys(entry.section for entry in COMMANDS.values())
    )
    assert all(entry.summary in text for entry in COMMANDS.values())


def test_the_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"gpuledger {__version__}\n")


@pytest.mark.parametrize("words", [[], ["show"], ["--colour"]])
def test_usage_errors_go_to_stderr_with_2(words: list[str]) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize("name", [None, *SURFACE])
def test_help_loads_neither_torch_nor_the_libraries_for_reading(name: str | None) -> None:
    words = [name, "--help"] if name else ["--help"]
    code = (
        "import sys, time; start = time.process_time()\n"
        "from gpuledger.cli.main import main\n"
        f"try: main({words!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "print(time.process_time() - start, *sys.modules, file=sys.stderr)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    time_s, *modules = child.stderr.split()
    assert not {"torch", "numpy", "pyarrow", "duckdb", "pynvml"} & set(modules)
    assert float(time_s) < HELP_LIMIT_S


def test_python_m_gpuledger_is_the_same_command() -> None:
    output = subprocess.check_output([sys.executable, "-m", "gpuledger", "--help"], text=True)
    assert output == CliRunner().invoke(main, ["--help"]).stdout
