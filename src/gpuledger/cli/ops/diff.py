"""``gpuledger ops diff``: two databases side by side."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import json_option, print_json, print_lines, rows_option
from gpuledger.cli.ops.common import print_remarks
from gpuledger.units import DASH, counted

if TYPE_CHECKING:
    from gpuledger.ops.database.database_diff import DatabaseDiff, OperatorChange

ROWS = 20


@click.command(
    "diff",
    epilog="""\b
Examples:
  gpuledger ops diff driver-570.db driver-580.db
  gpuledger ops diff h100.parquet h200.parquet --json""",
)
@click.argument("before", metavar="DATABASE_A")
@click.argument("after", metavar="DATABASE_B")
@rows_option(ROWS)
@json_option()
def diff_command(before: str, after: str, rows: int, as_json: bool) -> None:
    """Compare the measurements in two databases.

    Use it to compare GPUs, drivers or software versions. The newest measurement of each operator is used. A change is
    marked with * if the confidence intervals of the two times do not overlap.
    """
    from gpuledger.ops.database.contents import contents_of
    from gpuledger.ops.database.database_diff import diff_databases

    found = diff_databases(contents_of(before), contents_of(after))
    if as_json:
        print_json(_document(found))
        return
    print_lines(_lines(found, rows))
    if len(found.changes) > rows:
        print_remarks([f"{counted(len(found.changes) - rows, 'more operator')}: -n or --json print them."])


def _lines(found: DatabaseDiff, rows: int) -> list[str]:
    from gpuledger.report.base.terminal import Terminal, TextColumn, TextTable

    certain = sum(change.certain for change in found.changes)
    head = [
        *(f"A  {text}" for text in found.before),
        *(f"B  {text}" for text in found.after),
        f"{counted(len(found.changes), 'operator')} in both, {found.only_before:,} only in A, "
        f"{found.only_after:,} only in B; median time B/A {found.median_time_ratio:.3f}, "
        f"{certain:,} with intervals apart",
        "",
    ]
    titles = ("time A", "time B", "B/A", "energy B/A", "")
    columns = (
        *(TextColumn(title, right=True) for title in titles[:4]),
        TextColumn(""),
        TextColumn("operator", shrinks=True),
    )
    cells = tuple(_cells(change) for change in found.changes[:rows])
    return [*head, *TextTable(columns, cells).lines(Terminal.of(sys.stdout))]


def _cells(change: OperatorChange) -> tuple[str, ...]:
    times = [record.time_median_ns or 0.0 for record in (change.before, change.after)]
    ratio = change.energy_ratio
    return (
        *(f"{time_ns / 1e3:,.2f} µs" for time_ns in times),
        f"{change.time_ratio:.3f}",
        DASH if ratio is None else f"{ratio:.3f}",
        "*" if change.certain else "",
        change.key.text,
    )


def _document(found: DatabaseDiff) -> dict[str, Any]:
    return {
        "before": list(found.before),
        "after": list(found.after),
        "only_before": found.only_before,
        "only_after": found.only_after,
        "median_time_ratio": found.median_time_ratio,
        "changes": [
            {
                "digest": change.key.digest,
                "operator": change.key.text,
                "mode": change.before.method.get("mode"),
                "time_ratio": change.time_ratio,
                "energy_ratio": change.energy_ratio,
                "intervals_apart": change.certain,
                "before_time_ns": change.before.time_median_ns,
                "after_time_ns": change.after.time_median_ns,
            }
            for change in found.changes
        ],
    }
