"""``gpuledger calibrate``: what context and libraries take on the GPU of this machine."""

from __future__ import annotations

import click

from gpuledger.cli.common import json_option, print_json, print_lines, print_notes


@click.command(
    "calibrate",
    short_help="Measure what context and libraries take on this GPU.",
    epilog="""\b
Examples:
  gpuledger calibrate
  gpuledger calibrate --json""",
)
@json_option()
def calibrate_command(as_json: bool) -> None:
    """Measure what context and libraries take on the GPU of this machine, and keep it.

    A child process runs the pieces of a training step one after the other and reads what the GPU says it holds.
    """
    from gpuledger.collect.sampling.calibrate import cache_path, measure, store_profile
    from gpuledger.report.base.terminal import Column, Table, Terminal
    from gpuledger.units import format_bytes

    profile = measure()
    store_profile(profile, cache_path())
    if as_json:
        print_json(profile.to_json())
        return
    import sys

    rows = tuple((name, format_bytes(size)) for name, size in profile.increments())
    print_lines([str(profile.key), ""])
    print_lines(Table((Column("piece"), Column("adds", right=True)), rows).lines(Terminal.of(sys.stdout)))
    print_notes([f"kept in {cache_path()}"])
