"""``gpuledger run``: record a program that does not know of it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import PROGRAM, ProgramCommand, force_option, out_option
from gpuledger.errors import GpuLedgerError

if TYPE_CHECKING:
    from gpuledger.model.run import Run

_LAUNCHER_BROKE = 125


class RunCommand(ProgramCommand):
    """Takes any command, too."""

    program_usage = "SCRIPT [ARGS]… | -m MODULE [ARGS]… | -- COMMAND [ARGS]…"


_PASSES_HELP = """What to record, of memory,energy,time; energy:50,time:4 says how many steps.
  [default: all, where they fit]"""


@click.command(
    "run",
    cls=RunCommand,
    epilog="""\b
Examples:
  gpuledger run train.py --epochs 1
  gpuledger run --steps 10:12 --out late -- torchrun --nproc-per-node 2 train.py""",
)
@click.option("--steps", metavar="FIRST:LAST", help="Steps to record, both included.  [default: 1:3]")
@click.option("--passes", metavar="LIST", help=_PASSES_HELP)
@click.option("--until-end", is_flag=True, default=None, help="Read the GPUs' watts to the end.")
@out_option(".  [default: the program's, numbered]")
@force_option()
@click.option("--stacks/--no-stacks", default=None, help="Keep Python stacks in the last recorded step.  [default: on]")
@click.option("--devices", type=click.Choice(["auto", "cuda", "cpu"]), help="What to record.  [default: auto]")
@click.option("--live", is_flag=True, help="Say every ten seconds how it goes; `gpuledger live RUN` can ask for more.")
@click.option("-q", "--quiet", is_flag=True, default=None, help="Say nothing.")
@click.pass_context
def run_command(ctx: click.Context, /, out: str | None, force: bool, live: bool, **flags: Any) -> None:
    """Run a program and record where its bytes, milliseconds and joules go.

    The program is not changed and notices nothing: its output, signals and exit status are its own. Without --steps
    memory is recorded from the process's begin to the end of its third step; unprofiled steps follow, for the step
    time and the joules of a GPU, and two steps for the times of layers. A step is one step of the first optimizer, or
    one call of the outermost module when nothing is trained.
    """
    from gpuledger.collect.launch.settings import parse_passes, parse_steps
    from gpuledger.config import resolve
    from gpuledger.services.running import Listeners, command_of, record_program

    command, stem = command_of(ctx.meta[PROGRAM])
    settings = resolve(flags, os.environ, Path.cwd())
    parse_steps(settings["steps"].value)
    parse_passes(settings["passes"].value)
    listeners = Listeners(_say) if settings["quiet"].value else Listeners(_say, _say, _show)
    try:
        status = record_program(command, settings, listeners, out=out, stem=stem, force=force, live=live)
    except GpuLedgerError:
        raise
    except Exception as error:
        _say(f"gpuledger: error: the launcher broke: {type(error).__name__}: {error}")
        sys.exit(_LAUNCHER_BROKE)
    from gpuledger.collect.launch.launch import end_like

    end_like(status)


def _show(run: Run) -> None:
    from gpuledger.report.text.text import print_run_summary

    print_run_summary(run, sys.stderr)


def _say(line: str) -> None:
    """Write a line to stderr; where that is closed or broken, nobody listens and the program goes on."""
    with suppress(OSError, ValueError):
        click.echo(line, err=True)
