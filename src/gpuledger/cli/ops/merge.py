"""``gpuledger ops merge``: what another book holds, into this one."""

from __future__ import annotations

import click

from gpuledger.cli.common import print_lines
from gpuledger.cli.ops.common import book_option
from gpuledger.redact import hide_credentials


@click.command(
    "merge",
    short_help="Add what other books hold.",
    epilog="""\b
Examples:
  gpuledger ops merge node7.book node8.book
  gpuledger ops merge --book postgresql://me@host/books h200.parquet""",
)
@click.argument("others", nargs=-1, required=True, metavar="OTHER…")
@book_option()
def merge_command(others: tuple[str, ...], book_url: str) -> None:
    """Add what other books, or Parquet files exported from them, hold. What is there already stays as it is."""
    from gpuledger.ops.database.book import open_book
    from gpuledger.ops.database.contents import contents_of, merge

    read = [(other, contents_of(other)) for other in others]
    with open_book(book_url) as book:
        for other, contents in read:
            added = merge(book, contents)
            print_lines([f"{hide_credentials(other)}: {added:,} of {len(contents.records):,} records were new"])
