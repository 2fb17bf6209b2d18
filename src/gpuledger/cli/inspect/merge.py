"""``gpuledger merge``: the runs of several hosts as one run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import click

from gpuledger.cli.common import RANKS_HELP, force_option, out_option, print_lines, print_notes, ray_option, tell_unread
from gpuledger.model.run_directory import is_url
from gpuledger.redact import hide_credentials
from gpuledger.units import counted


@click.command(
    "merge",
    epilog="""\b
Examples:
  gpuledger merge host-a/train.ledger host-b/train.ledger --out train
  gpuledger merge s3://bucket/job --out train""",
)
@click.argument("runs", metavar="RUN…", nargs=-1, required=True)
@out_option(", or the URL that it is uploaded to.  [default: name of the first run with -merged, numbered]")
@force_option()
@click.option("--ranks", default="all", metavar="LIST", help=RANKS_HELP)
@ray_option()
def merge_command(runs: Sequence[str], out: str | None, force: bool, ranks: str, ray_address: str | None) -> None:
    """Combine the runs that several hosts recorded of one job.

    Each rank is copied into the new run. Two runs with the same rank are refused. The path of the new run is printed to
    stdout; the first screen of `show` names ranks that are missing. With --ranks, the other ranks have summaries only.

    A folder means all runs in it. A RUN can be in object storage, such as s3://bucket/train.

    With --ray, tasks of the cluster build the tables of ranks that have none, and the summaries. The runs must be in a
    folder that all nodes share, or in object storage.
    """
    from gpuledger.collect.launch.settings import parse_ranks
    from gpuledger.services.remote_runs import later_upload, uploaded_to
    from gpuledger.services.runs import runs_inside

    parse_ranks(ranks)
    unread: list[str] = []
    url = later_upload(out).url if is_url(out) else None
    with ExitStack() as ending:
        place = out if url is None else ending.enter_context(uploaded_to(url, force=force))
        inputs = [inside for path in runs for inside in runs_inside(path, unread)]
        merged, notes = _merge(inputs, place, ranks, ray_address, force=force)
    print_lines([merged if url is None else hide_credentials(url)])
    print_notes(f"gpuledger: {note}" for note in notes)
    tell_unread(unread)


def _merge(
    inputs: Sequence[str], out: str | None, ranks: str, ray_address: str | None, *, force: bool
) -> tuple[str, list[str]]:
    """Return the path of the merged run, and what to say about it."""
    from gpuledger.analyze.ranks.problems import list_problems
    from gpuledger.services.keeping_events import keep_events
    from gpuledger.services.merges.merging import merge_runs

    notes: list[str] = []
    merged = keep_events(merge_runs(inputs, out, force=force, ray=ray_address, say=notes.append), ranks)
    notes += [f"merged {counted(len(merged.ranks), 'rank')} of {counted(len(inputs), 'run')}"]
    return str(merged.path), [*notes, *list_problems(merged.ranks)]
