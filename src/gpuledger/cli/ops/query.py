"""``gpuledger ops query``: SQL over a database, read-only."""

from __future__ import annotations

import click

from gpuledger.cli.common import csv_option, json_option, rows_option
from gpuledger.cli.inspect.sql import ROWS, limit_options, parse_limits, print_query, refuse_two_forms
from gpuledger.cli.ops.common import database_option


@click.command(
    "query",
    short_help="Ask the database with SQL, read-only.",
    epilog="""\b
Examples:
  gpuledger ops query "select operator, count(*), min(time_median_ns) from measured group by 1"
  gpuledger ops query --database h200.parquet "describe records" --csv""",
)
@click.argument("query")
@database_option()
@json_option()
@csv_option()
@rows_option(ROWS)
@limit_options()
def query_command(
    query: str, database_url: str, as_json: bool, as_csv: bool, rows: int, memory_limit: str, timeout: str
) -> None:
    """Ask the database with SQL, read-only.

    Tables: `keys`, `environments`, `records`; `measured` is every record with its operator and its environment. Inputs,
    flags, method, blocks and kernels are JSON text. One SELECT (or DESCRIBE, SHOW TABLES), in DuckDB's words; neither
    the database nor any file can be written.
    """
    refuse_two_forms(as_json=as_json, as_csv=as_csv)
    limits = parse_limits(memory_limit, timeout)
    from gpuledger.export.sql import locked_database
    from gpuledger.ops.database.contents import MEASURED, contents_of, tables_of

    database = locked_database(tables_of(contents_of(database_url)), (MEASURED,), limits)
    print_query(database, query, limits, rows, as_json=as_json, as_csv=as_csv)
