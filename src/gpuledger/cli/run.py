"""``gpuledger run``: record a program that does not know of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from gpuledger.errors import UsageError

_LAUNCHER_BROKE = 125
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_WITH_VALUE = frozenset({"--steps", "--out", "--devices"})


class RunCommand(click.Command):
    """Splits the line where the program's own begins: nothing after that is ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the program's words apart, and let click read ours."""
        ours, theirs = split_line(args)
        ctx.meta["gpuledger.program"] = theirs
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line's pieces."""
        return ["[OPTIONS]", "SCRIPT [ARGS]… | -m MODULE [ARGS]… | -- COMMAND [ARGS]…"]


def split_line(args: list[str]) -> tuple[list[str], list[str]]:
    """Return our options, and the program's words with what introduces them (``-m``, ``--``, or nothing)."""
    place = 0
    while place < len(args):
        word = args[place]
        if word in ("-m", "--") or not word.startswith("-"):
            break
        place += 2 if word in _WITH_VALUE else 1
    return args[:place], args[place:]


def command_of(program: list[str]) -> tuple[tuple[str, ...], str]:
    """Return the command to start, and the stem of the run's name.

    Raises:
        UsageError: nothing to run.
    """
    if program[:1] == ["--"] and len(program) > 1:
        return tuple(program[1:]), Path(program[1]).stem
    if program[:1] == ["-m"] and len(program) > 1:
        return (sys.executable, *program), program[1].rpartition(".")[2]
    if program and program[0] not in ("--", "-m"):
        return (sys.executable, *program), Path(program[0]).stem
    raise UsageError("run: nothing to run", hint="gpuledger run train.py   or   gpuledger run -- COMMAND")


@click.command(
    "run",
    cls=RunCommand,
    epilog="""\b
Examples:
  gpuledger run train.py --epochs 1
  gpuledger run --steps 10:12 --out late -- torchrun --nproc-per-node 2 train.py""",
)
@click.option("--steps", metavar="FIRST:LAST", help="Steps to record, both included.  [default: 1:3]")
@click.option("--out", metavar="NAME", help="Name of the run.  [default: the program's, numbered]")
@click.option("--force", is_flag=True, help="Replace a run of that name.")
@click.option("--stacks/--no-stacks", default=None, help="Keep Python stacks in the last recorded step.  [default: on]")
@click.option("--devices", type=click.Choice(["auto", "cuda", "cpu"]), help="What to record.  [default: auto]")
@click.option("-q", "--quiet", is_flag=True, default=None, help="Say nothing.")
@click.pass_context
def run_command(ctx: click.Context, /, out: str | None, force: bool, **flags: Any) -> None:
    """Run a program and record where its memory goes.

    The program is not changed and notices nothing: its output, signals and exit status are its own. Without --steps
    the recording begins with the process and ends with the third step. A step is one step of the first optimizer, or
    one call of the outermost module when nothing is trained.
    """
    from gpuledger.collect.launch import Order, begin_run, end_like, end_run, run_child
    from gpuledger.collect.settings import parse_steps
    from gpuledger.config import resolve
    from gpuledger.model.run import choose_directory

    command, stem = command_of(ctx.meta["gpuledger.program"])
    settings = resolve(flags, os.environ, Path.cwd())
    parse_steps(settings["steps"].value)
    directory = choose_directory(out, force=force, stem=stem)
    environment = {
        "GPULEDGER_STEPS": settings["steps"].value,
        "GPULEDGER_STACKS": "1" if settings["stacks"].value else "0",
        "GPULEDGER_DEVICES": settings["devices"].value,
    }
    kept = {name: (setting.value, setting.origin) for name, setting in settings.items()}
    order = Order(command, directory, environment, kept)
    begin_run(order)
    speak = not settings["quiet"].value
    if speak:
        click.echo(f"gpuledger: recording to {directory.name}, {_what(settings['devices'].value)}", err=True)
    try:
        status = run_child(order)
    except FileNotFoundError:
        _refuse(directory, f"{command[0]}: command not found", _NOT_FOUND)
    except PermissionError:
        _refuse(directory, f"{command[0]}: not executable", _NOT_EXECUTABLE)
    try:
        end_run(directory, status)
        _settle(directory, speak=speak)
    except Exception as error:
        click.echo(f"gpuledger: error: {directory.name}: {type(error).__name__}: {error}", err=True)
    end_like(status, _flush)


def _what(devices: str) -> str:
    """Return in words what will be recorded on this machine."""
    from gpuledger.collect.nvml import open_nvml

    nvml = None if devices == "cpu" else open_nvml()
    count = nvml.device_count() if nvml is not None else 0
    if devices == "cuda" or count:
        cards = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        return f"CUDA allocator history on {cards}"
    why = "as asked" if devices == "cpu" else "no GPU found"
    return f"CPU tensors by the dispatch-mode recorder ({why})"


def _settle(directory: Path, *, speak: bool) -> None:
    """Post what was recorded, and tell the short form of it."""
    from gpuledger.api import settle
    from gpuledger.report.text import print_run_summary

    run = settle(directory)
    if speak:
        print_run_summary(run, sys.stderr)


def _refuse(directory: Path, message: str, status: int) -> NoReturn:
    import shutil

    shutil.rmtree(directory)
    click.echo(f"gpuledger: error: {message}", err=True)
    sys.exit(status)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
