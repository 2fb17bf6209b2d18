"""``gpuledger live``: the GPUs, and a run while it is written, in a second terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpuledger.cli.common import print_lines
from gpuledger.errors import InputError, NoDeviceError


@click.command(
    "live",
    short_help="Look at the GPUs, and at a run while it is written.",
    epilog="""\b
Examples:
  gpuledger live train.ledger
  gpuledger live --pid 4321 --once""",
)
@click.argument("run_path", metavar="[RUN]", required=False)
@click.option("--pid", type=click.IntRange(min=1), metavar="PID", help="Tell this process's bytes apart.")
@click.option("--once", is_flag=True, help="Print one frame and end.")
def live_command(run_path: str | None, pid: int | None, once: bool) -> None:
    """Look at the GPUs, and at a run while it is written.

    Twice a second, in a process of its own; the run and its program are not touched. Below the GPUs stand the accounts
    at the peak of the run's last recorded step. `b` changes between categories and modules, `s` the order, `q` ends.
    `d` asks a program that was started with `gpuledger run --live` for a memory pass now, a run of its own. Without a
    terminal it prints a line every ten seconds until the run has ended.
    """
    from gpuledger.live.gauges import open_gauges
    from gpuledger.live.view import LiveView, draw, is_terminal, write_lines
    from gpuledger.live.watched_run import WatchedRun
    from gpuledger.report.base.terminal import Terminal

    gauges = open_gauges(pid)
    if gauges is None and run_path is None:
        raise NoDeviceError("no GPU can be read here, and no run was named", hint="gpuledger live RUN")
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
    raise InputError(f"{text}: not a run", hint="a run is a directory NAME.ledger made by `gpuledger run`")
