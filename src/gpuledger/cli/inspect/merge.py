"""``gpuledger merge``: the runs of several hosts as one run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gpuledger.cli.common import RANKS_HELP, force_option, out_option, print_lines, print_notes
from gpuledger.units import counted


@click.command(
    "merge",
    epilog="""\b
Examples:
  gpuledger merge host-a/train.ledger host-b/train.ledger --out train
  gpuledger merge host-*/train.ledger --out train --force""",
)
@click.argument("runs", metavar="RUN…", nargs=-1, required=True)
@out_option(".  [default: name of the first run with -merged, numbered]")
@force_option()
@click.option("--ranks", default="all", metavar="LIST", help=RANKS_HELP)
def merge_command(runs: Sequence[str], out: str | None, force: bool, ranks: str) -> None:
    """Combine the runs that several hosts recorded of one job.

    Each rank is copied into the new run. Two runs with the same rank are refused. The path of the new run is printed to
    stdout; the first screen of `show` names ranks that are missing. With --ranks, the other ranks have summaries only.
    """
    from gpuledger.analyze.ranks.problems import list_problems
    from gpuledger.collect.launch.settings import parse_ranks
    from gpuledger.services.keeping_events import keep_events
    from gpuledger.services.merging import merge_runs

    parse_ranks(ranks)
    merged = keep_events(merge_runs(runs, out, force=force), ranks)
    print_lines([str(merged.path)])
    notes = [f"gpuledger: merged {counted(len(merged.ranks), 'rank')} of {counted(len(runs), 'run')}"]
    print_notes([*notes, *(f"gpuledger: {problem}" for problem in list_problems(merged.ranks))])
