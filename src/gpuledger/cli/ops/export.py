"""``gpuledger ops export``: a database as Parquet, CSV or a page."""

from __future__ import annotations

from pathlib import Path

import click

from gpuledger.cli.common import force_option, output_option, print_notes
from gpuledger.cli.inspect.report import choose_file, write_text
from gpuledger.cli.ops.common import database_option
from gpuledger.errors import UsageError
from gpuledger.redact import hide_credentials
from gpuledger.units import counted


@click.command(
    "export",
    short_help="Write the database as Parquet, CSV or HTML.",
    epilog="""\b
Examples:
  gpuledger ops export --to parquet -o h200.parquet
  gpuledger ops export --database postgresql://me@host/operators --to html""",
)
@database_option()
@click.option("--to", "form", required=True, type=click.Choice(["parquet", "csv", "html"]), help="The form to write.")
@output_option("Where to write.  [default: operators.FORM]")
@force_option()
def export_command(database_url: str, form: str, output: str | None, force: bool) -> None:
    """Write the database as Parquet, CSV or HTML.

    Parquet holds everything in one file: `merge`, `diff` and `query` take it in place of a database. HTML is one page
    for     people, without what they do not read.
    """
    from gpuledger.ops.database.contents import contents_of, write_csv, write_parquet

    path = _file(output, f"operators.{form}", force=force)
    contents = contents_of(database_url)
    held = f"{counted(len(contents.records), 'record')} of {counted(len(contents.keys), 'operator')}"
    if form == "parquet":
        write_parquet(contents, path)
    elif form == "csv":
        write_csv(contents, path)
    else:
        from gpuledger.report.html.database_page import render_database

        write_text(path, render_database(contents.rows(), hide_credentials(database_url), held))
    print_notes([f"gpuledger: {held} in {path}"])


def _file(output: str | None, default: str, *, force: bool) -> Path:
    """Return the file to write.

    Raises:
        UsageError: it exists and ``force`` is not given, or it cannot be written there.
    """
    if output == "-":
        raise UsageError("-o -: a database is not written to stdout", hint="gpuledger ops query QUERY --csv does that")
    path = choose_file(output, default, force=force)
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no folder {path.parent}", hint="make it, or give another -o")
    return path
