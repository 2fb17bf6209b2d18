"""``gpuledger calibrate``: the memory of the CUDA context and libraries on the GPU of this machine."""

from __future__ import annotations

import click

from gpuledger.cli.common import json_option, print_json, print_lines, print_notes


@click.command(
    "calibrate",
    epilog="""\b
Examples:
  gpuledger calibrate
  gpuledger calibrate --json""",
)
@json_option()
def calibrate_command(as_json: bool) -> None:
    """Measure the memory that CUDA uses on this GPU.

    Measures the CUDA context, the libraries and their kernels, one after the other, in a separate process. The result
    is stored in your cache directory, and `gpuledger balance` uses it.
    """
    from gpuledger.collect.sampling.calibrate import cache_path, measure, store_profile
    from gpuledger.report.base.terminal import Terminal, TextColumn, TextTable
    from gpuledger.units import format_bytes

    profile = measure()
    store_profile(profile, cache_path())
    if as_json:
        print_json(profile.to_json())
        return
    import sys

    rows = tuple((name, format_bytes(size)) for name, size in profile.increments())
    print_lines([str(profile.key), ""])
    print_lines(
        TextTable((TextColumn("component"), TextColumn("memory", right=True)), rows).lines(Terminal.of(sys.stdout))
    )
    print_notes([f"gpuledger: stored in {cache_path()}"])
