"""``gpuledger trace``: a run as a file for Perfetto and chrome://tracing."""

from __future__ import annotations

import click

from gpuledger.cli.common import (
    choose_ranks,
    force_option,
    open_run,
    output_option,
    print_notes,
    rank_option,
    run_argument,
)
from gpuledger.cli.inspect.report import choose_file, echo_path
from gpuledger.units import format_bytes


@click.command(
    "trace",
    epilog="""\b
Examples:
  gpuledger trace train.ledger
  gpuledger trace train.ledger --rank 0 -o trace.json""",
)
@run_argument()
@output_option(
    "File to write, compressed if the name ends in .gz.  [default: NAME.trace.json.gz in the current directory]"
)
@rank_option()
@force_option()
def trace_command(run_path: str, output: str | None, rank_text: str | None, force: bool) -> None:
    """Write a timeline of a run for Perfetto or Chrome.

    The timeline has steps, phases, modules, kernels and operators, with memory and power. Kernels, operators and
    modules are those of the profiled steps. Open the file at https://ui.perfetto.dev or chrome://tracing. The path is
    printed to stdout.
    """
    run = open_run(run_path)
    ranks = choose_ranks(run, rank_text)
    place = choose_file(output, f"{run.name}.trace.json.gz", force=force)
    from gpuledger.files.writing import output as written_to
    from gpuledger.report.trace.trace import build_trace, write_trace

    trace = build_trace(run, ranks)
    with written_to(place) as stream:
        count = write_trace(trace, stream, packed=place.name.endswith(".gz"))
        size = format_bytes(stream.tell())
    echo_path(place)
    print_notes([f"gpuledger: wrote {count:,} events ({size}), open {place.name} at https://ui.perfetto.dev"])
    print_notes(f"gpuledger: {note}" for note in trace.notes)
