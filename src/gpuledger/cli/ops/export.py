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
    epilog="""\b
Examples:
  gpuledger ops export --to parquet -o h200.parquet
  gpuledger ops export --database postgresql://me@host/operators --to html""",
)
@database_option()
@click.option("--to", "form", required=True, type=click.Choice(["parquet", "csv", "html"]), help="Format to write.")
@output_option("File to write.  [default: operators.parquet, operators.csv or operators.html]")
@force_option()
def export_command(database_url: str, form: str, output: str | None, force: bool) -> None:
    """Export the database as Parquet, CSV or HTML.

    A Parquet file has the complete database: `merge`, `diff` and `query` accept it in place of a database. HTML is one
    page to read in a browser, with the most important columns.
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
    print_notes([f"gpuledger: wrote {held} to {path}"])


def _file(output: str | None, default: str, *, force: bool) -> Path:
    """Return the file to write.

    Raises:
        UsageError: it exists and ``force`` is not given, or it cannot be written there.
    """
    if output == "-":
        raise UsageError("-o -: cannot write a database to stdout", hint="gpuledger ops query QUERY --csv")
    path = choose_file(output, default, force=force)
    if not path.parent.is_dir():
        raise UsageError(
            f"{path}: folder {path.parent} does not exist", hint="Create the folder, or use another name with -o"
        )
    return path
