"""``gpuledger live``: the GPUs, and a run while it is written, in a second terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpuledger.cli.common import print_lines
from gpuledger.errors import InputError, NoDeviceError


@click.command(
    "live",
    epilog="""\b
Examples:
  gpuledger live train.ledger
  gpuledger live --pid 4321 --once""",
)
@click.argument("run_path", metavar="[RUN]", required=False)
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Process to show memory of separately, by its process ID.",
)
@click.option("--once", is_flag=True, help="Print the current state once and exit.")
def live_command(run_path: str | None, pid: int | None, once: bool) -> None:
    """Monitor GPUs and a running job.

    Shows the GPUs twice a second. With RUN, it also shows the memory at the peak of the last recorded step. The monitor
    runs in its own process and does not change the job.

    Keys: `b` switches between categories and modules, `s` changes the sort order, `q` quits. `d` requests a memory
    recording now, if the job was started with `gpuledger run --live`.

    If the output is not a terminal, one line is printed every 10 s until the job ends.
    """
    from gpuledger.live.gauges import open_gauges
    from gpuledger.live.view import LiveView, draw, is_terminal, write_lines
    from gpuledger.live.watched_run import WatchedRun
    from gpuledger.report.base.terminal import Terminal

    gauges = open_gauges(pid)
    if gauges is None and run_path is None:
        raise NoDeviceError("live: no readable GPU on this machine, and no run to monitor", hint="gpuledger live RUN")
    run = None if run_path is None else WatchedRun(_directory(run_path))
    view = LiveView(gauges, run)
    try:
        if once:
            lines, _ = view.lines(Terminal.of(sys.stdout), 10_000)
            print_lines(lines[:-1])
        elif is_terminal():
            draw(view, sys.stdout, sys.stdin)
        else:
            write_lines(view, sys.stdout)
    finally:
        if run is not None:
            run.close()


def _directory(text: str) -> Path:
    for path in (Path(text), Path(f"{text}.ledger")):
        if (path / "manifest.json").is_file():
            return path
    raise InputError(f"{text}: not a run", hint="Record a run with: gpuledger run --live train.py")
