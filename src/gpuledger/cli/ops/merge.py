"""``gpuledger ops merge``: what another database holds, into this one."""

from __future__ import annotations

import click

from gpuledger.cli.common import print_lines
from gpuledger.cli.ops.common import database_option
from gpuledger.redact import hide_credentials


@click.command(
    "merge",
    epilog="""\b
Examples:
  gpuledger ops merge node7.db node8.db
  gpuledger ops merge --database postgresql://me@host/operators h200.parquet""",
)
@click.argument("others", nargs=-1, required=True, metavar="OTHER…")
@database_option()
def merge_command(others: tuple[str, ...], database_url: str) -> None:
    """Merge other databases into the operator database.

    Each OTHER is a database or a Parquet file that `gpuledger ops export` wrote. Records that are already in the
    database do not change.
    """
    from gpuledger.ops.database.contents import contents_of, merge
    from gpuledger.ops.database.operator_database import open_database

    read = [(other, contents_of(other)) for other in others]
    with open_database(database_url) as database:
        for other, contents in read:
            added = merge(database, contents)
            print_lines([f"{hide_credentials(other)}: {added:,} of {len(contents.records):,} records were new"])
