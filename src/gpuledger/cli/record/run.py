"""``gpuledger run``: record a program that does not know of it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import PROGRAM, RANKS_HELP, ProgramCommand, force_option, out_option
from gpuledger.cli.scripts import command_of, refuse_other_programs
from gpuledger.errors import GpuLedgerError
from gpuledger.model.run_directory import is_url

if TYPE_CHECKING:
    from gpuledger.model.run import Run

_LAUNCHER_BROKE = 125


class RunCommand(ProgramCommand):
    """Takes any command, too."""

    program_usage = "SCRIPT [ARGS]… | -m MODULE [ARGS]… | COMMAND [ARGS]…"


_PASSES_HELP = """Measurements to make: memory, energy and time, separated by commas. NAME:N sets the number of
  steps, such as time:4.  [default: all three, if the program has enough steps]"""


_STEP_ON_HELP = """What ends a step: optimizer, module, call:NAME or mark. With module it is a call of the outermost
  module, with NAME of the modules with that path or class, with mark of gpuledger.step().  [default: auto]"""


@click.command(
    "run",
    cls=RunCommand,
    epilog="""\b
Examples:
  gpuledger run train.py --epochs 1
  gpuledger run --steps 10:12 torchrun --nproc-per-node 2 train.py""",
)
@click.option("--steps", metavar="FIRST:LAST", help="First and last step of the memory recording.  [default: 1:3]")
@click.option("--step-on", metavar="WHAT", help=_STEP_ON_HELP)
@click.option("--passes", metavar="LIST", help=_PASSES_HELP)
@click.option("--until-end", is_flag=True, default=None, help="Sample GPU power until the program ends.")
@out_option(", or the URL that it is uploaded to.  [default: name of the program, numbered]")
@force_option()
@click.option("--stacks/--no-stacks", default=None, help="Record the source line of each allocation.  [default: on]")
@click.option(
    "--flight-recorder/--no-flight-recorder",
    default=None,
    help="Record counters of every step, and out-of-memory errors in any step.  [default: on]",
)
@click.option("--devices", type=click.Choice(["auto", "cuda", "cpu"]), help="Devices to record.  [default: auto]")
@click.option("--ranks", metavar="LIST", help=RANKS_HELP)
@click.option(
    "--repeat",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of times to run the program, into NAME-1 to NAME-N.",
)
@click.option(
    "--live", is_flag=True, help="Print progress every 10 s, and let `gpuledger live RUN` request recordings."
)
@click.option("-q", "--quiet", is_flag=True, default=None, help="Print no messages of gpuledger.")
@click.pass_context
def run_command(ctx: click.Context, /, out: str | None, force: bool, live: bool, repeat: int, **flags: Any) -> None:
    """Record the memory, time and energy of a program, layer by layer.

    The program runs unchanged: its output, signals and exit status stay the same. By default, memory is recorded from
    the start of the process to the end of step 3. Three profiled steps follow, for layer times. Unprofiled steps
    follow, for step time and GPU energy.

    A step is one step of the first optimizer. In a program without an optimizer, it is one call of the outermost
    module. If the program calls gpuledger.step(), it marks the end of each step. --step-on selects one of these.

    Exits with the status of the program, or with status 125 if gpuledger itself fails. With --repeat, it is the status
    of the first run that fails.
    """
    from gpuledger.collect.launch.ranks import name_of_process
    from gpuledger.collect.launch.settings import parse_passes, parse_ranks, parse_step_on, parse_steps
    from gpuledger.config import resolve
    from gpuledger.services.running import Listeners, record_program, record_repeats

    command, stem = command_of(ctx.meta[PROGRAM])
    refuse_other_programs(ctx.meta[PROGRAM], "gpuledger run", runs_commands=True)
    out, stem = None if out is None else name_of_process(out), name_of_process(stem)
    settings = resolve(flags, os.environ, Path.cwd())
    parse_steps(settings["steps"].value)
    parse_step_on(settings["step_on"].value)
    parse_passes(settings["passes"].value)
    parse_ranks(settings["ranks"].value)
    note, show = (None, None) if settings["quiet"].value else (_say, _show)
    listeners = Listeners(_say, note, show)
    upload = None
    if is_url(out):
        from gpuledger.services.remote_runs import later_upload

        upload = later_upload(out, force=force)
        upload.check(repeat, _say)
        out, listeners = upload.name, Listeners(_say, note, show, upload.finished.append)

    def record(name: str | None) -> int:
        return record_program(command, settings, listeners, out=name, stem=stem, force=force, live=live)

    try:
        if repeat > 1:
            status = record_repeats(repeat, record, listeners, out=out, stem=stem, force=force)
        else:
            status = record(out)
        if upload is not None:
            upload.run(_say, note)
    except GpuLedgerError:
        raise
    except Exception as error:
        _say(f"gpuledger: error: could not record the program: {type(error).__name__}: {error}")
        sys.exit(_LAUNCHER_BROKE)
    from gpuledger.collect.launch.launch import end_like

    end_like(status)


def _show(run: Run) -> None:
    from gpuledger.report.text.run_summary import print_run_summary

    print_run_summary(run, sys.stderr)


def _say(line: str) -> None:
    """Write a line to stderr; where that is closed or broken, nobody listens and the program goes on."""
    with suppress(OSError, ValueError):
        click.echo(line, err=True)
