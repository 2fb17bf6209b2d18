"""``gpuledger budget``: a first budget file for a run."""

from __future__ import annotations

import sys

import click

from gpuledger.cli.common import force_option, open_run, output_option, print_notes, quoted
from gpuledger.cli.inspect.report import choose_file, echo_path, write_text
from gpuledger.units import parse_frac


@click.command(
    "budget",
    epilog="""\b
Examples:
  gpuledger budget train.ledger --headroom 5%
  gpuledger budget one.ledger two.ledger three.ledger -o budget.toml""",
)
@click.argument("run_paths", metavar="RUN…", nargs=-1, required=True)
@click.option(
    "--headroom",
    default="2%",
    show_default=True,
    metavar="N%",
    help="How far above the measured values to set the limits, in percent.",
)
@output_option("File to write.  [default: budget.toml]")
@force_option()
def budget_command(run_paths: tuple[str, ...], headroom: str, output: str | None, force: bool) -> None:
    """Write a limits file from measured runs.

    Each limit is the measured value plus the headroom. Edit the file, then use it with `gpuledger check`. With three or
    more runs of the same program, the file also limits sampled values, such as the step time. Their tolerances are set
    from the differences between the runs.
    """
    share = parse_frac(headroom)
    place = choose_file(output, "budget.toml", force=force)
    from gpuledger.analyze.compare.first_budget import write_budget
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.run_summary import next_lines

    write_text(place, write_budget([open_run(path) for path in run_paths], share))
    echo_path(place)
    command = f"gpuledger check {quoted(run_paths[0])} --budget {quoted(place)}"
    print_notes(next_lines([command], Terminal.of(sys.stderr)))
