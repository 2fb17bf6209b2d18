"""``gpuledger sql``: DuckDB over the tables of a run, read-only."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import (
    Decorator,
    csv_option,
    json_option,
    open_run,
    print_lines,
    print_notes,
    rows_option,
    run_argument,
)
from gpuledger.errors import GpuLedgerError, UsageError, in_option

if TYPE_CHECKING:
    import duckdb

    from gpuledger.export.query_limits import QueryLimits
    from gpuledger.export.sql import Answer

ROWS = 100
MEMORY_LIMIT, TIMEOUT = "1GiB", "60s"
LEAST_BYTES = 16 << 20


def limit_options() -> Decorator:
    """Return the options --memory-limit and --timeout."""
    memory = click.option(
        "--memory-limit", default=MEMORY_LIMIT, show_default=True, metavar="SIZE", help="Memory limit, such as 512MiB."
    )
    timeout = click.option(
        "--timeout", default=TIMEOUT, show_default=True, metavar="TIME", help="Time limit, such as 30s or 10min."
    )
    return lambda command: memory(timeout(command))


@click.command(
    "sql",
    epilog="""\b
Examples:
  gpuledger sql train.ledger "select sum(requested_bytes) from at_peak"
  gpuledger sql train.ledger "show tables\"""",
)
@run_argument()
@click.argument("query")
@json_option()
@csv_option()
@rows_option(ROWS)
@limit_options()
def sql_command(
    run_path: str, query: str, as_json: bool, as_csv: bool, rows: int, memory_limit: str, timeout: str
) -> None:
    """Query the tables of a run with SQL.

    QUERY is one SELECT, DESCRIBE or SHOW TABLES statement of DuckDB. It can read only this run and cannot write. Tables
    have the rows of all ranks, with the rank in the first column.

    Besides the tables there are three views. `allocations` has the blocks with module path and tensor name. `peaks`
    has the moment of each device's peak. `at_peak` has the blocks that are allocated at that moment.
    """
    from gpuledger.export.sql import open_database

    refuse_two_forms(as_json=as_json, as_csv=as_csv)
    limits = parse_limits(memory_limit, timeout)
    print_query(open_database(open_run(run_path), limits), query, limits, rows, as_json=as_json, as_csv=as_csv)


def refuse_two_forms(*, as_json: bool, as_csv: bool) -> None:
    """Do nothing where one form at most is asked for.

    Raises:
        UsageError: both are.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv: cannot be combined", hint="Use only one of them")


def parse_limits(memory_limit: str, timeout: str) -> QueryLimits:
    """Return what --memory-limit and --timeout allow.

    Raises:
        UsageError: one is no size or no time, or 0.
    """
    from gpuledger.export.query_limits import QueryLimits
    from gpuledger.units import parse_bytes, parse_duration_ns

    with in_option("--memory-limit"):
        memory_bytes = parse_bytes(memory_limit)
    with in_option("--timeout"):
        time_ns = parse_duration_ns(timeout)
    if memory_bytes < LEAST_BYTES:
        raise UsageError(f"--memory-limit {memory_limit}: too small", hint="Use 16MiB or more")
    if time_ns <= 0:
        raise UsageError(f"--timeout {timeout}: must be above 0", hint=f"Use a time such as {TIMEOUT}")
    return QueryLimits(memory_bytes, time_ns / 1e9, _leave)


def _leave(error: GpuLedgerError) -> None:
    """End the process: the query does not stop, and nothing else can."""
    sys.stderr.write(f"gpuledger: error: {error.message}\n  hint: {error.hint}\n")
    sys.stderr.flush()
    os._exit(error.exit_code)


def print_query(
    database: duckdb.DuckDBPyConnection, query: str, limits: QueryLimits, rows: int, *, as_json: bool, as_csv: bool
) -> None:
    """Print the answer to a query, which takes no more than the limits."""
    from gpuledger.export.query_limits import limited_memory
    from gpuledger.export.sql import ask

    with limited_memory(limits):
        print_answer(ask(database, query, limits), rows, as_json=as_json, as_csv=as_csv)


def print_answer(answer: Answer, rows: int, *, as_json: bool, as_csv: bool) -> None:
    """Print a query's answer: as JSON or CSV whole, else its first rows as a table."""
    if as_json:
        _print_json(answer)
    elif as_csv:
        _print_csv(answer)
    else:
        _print_table(answer, rows)


def _print_json(answer: Answer) -> None:
    """Print the rows as they come; a repeated column name is numbered, so that no value is lost."""
    names = _distinct(answer.columns)
    separator = "["
    for row in _rows(answer):
        values = dict(zip(names, map(_plain, row), strict=True))
        click.echo(f"{separator}\n{json.dumps(values, ensure_ascii=True, allow_nan=False)}", nl=False)
        separator = ","
    click.echo("[]" if separator == "[" else "\n]")


def _print_csv(answer: Answer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows([_plain(value) for value in row] for row in _rows(answer))


def _print_table(answer: Answer, limit: int) -> None:
    """Print the first rows as a table, or one value a line where the table is wider than the terminal."""
    from gpuledger.report.base.terminal import Terminal, TextColumn, TextTable

    terminal = Terminal.of(sys.stdout)
    found = _rows(answer)
    shown = list(islice(found, limit))
    texts = tuple(tuple(_text(value) for value in row) for row in shown)
    numeric = [any(isinstance(row[n], int | float | Decimal) for row in shown) for n in range(len(answer.columns))]
    columns = (TextColumn(name, right=right) for name, right in zip(answer.columns, numeric, strict=True))
    table = TextTable(tuple(columns), texts)
    if table.fits(terminal):
        print_lines(table.lines(terminal))
    else:
        for position, row in enumerate(texts):
            pairs = TextTable((TextColumn(), TextColumn()), tuple(zip(answer.columns, row, strict=True)))
            print_lines([*([""] if position else []), *pairs.lines(terminal)])
    left = sum(1 for _ in found)
    if left:
        print_notes([f"gpuledger: {left:,} more rows; -n {limit + left}, --csv or --json print them"])


def _rows(answer: Answer) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(answer.batches)


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def _plain(value: Any) -> Any:
    """Return a value that JSON and CSV can hold."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _distinct(names: Iterable[str]) -> list[str]:
    taken: list[str] = []
    for name in names:
        number = 1
        candidate = name
        while candidate in taken:
            number += 1
            candidate = f"{name}_{number}"
        taken.append(candidate)
    return taken
