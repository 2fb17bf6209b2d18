"""``gpuledger ops query``: SQL over a database, read-only."""

from __future__ import annotations

import click

from gpuledger.cli.common import csv_option, json_option, rows_option
from gpuledger.cli.inspect.sql import ROWS, limit_options, parse_limits, print_query, refuse_two_forms
from gpuledger.cli.ops.common import note_if_shipped, read_database_option


@click.command(
    "query",
    epilog="""\b
Examples:
  gpuledger ops query "select operator, count(*) from measured group by 1"
  gpuledger ops query --database h200.parquet "describe records" --csv""",
)
@click.argument("query")
@read_database_option()
@json_option()
@csv_option()
@rows_option(ROWS)
@limit_options()
def query_command(
    query: str, database_url: str | None, as_json: bool, as_csv: bool, rows: int, memory_limit: str, timeout: str
) -> None:
    """Query the operator database with SQL.

    QUERY is one SELECT, DESCRIBE or SHOW TABLES statement of DuckDB; it cannot write. The tables are `keys`,
    `environments` and `records`. The view `measured` joins every record with its operator and environment. Inputs,
    flags, method, blocks and kernels are JSON text.
    """
    refuse_two_forms(as_json=as_json, as_csv=as_csv)
    limits = parse_limits(memory_limit, timeout)
    from gpuledger.export.sql import locked_database
    from gpuledger.ops.database.contents import MEASURED, tables_of
    from gpuledger.ops.database.shipped import contents_or_shipped

    note_if_shipped(database_url)
    database = locked_database(tables_of(contents_or_shipped(database_url)), (MEASURED,), limits)
    print_query(database, query, limits, rows, as_json=as_json, as_csv=as_csv)
