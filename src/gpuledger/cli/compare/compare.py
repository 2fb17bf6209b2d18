"""``gpuledger compare``: runs beside each other, each against the first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import csv_option, json_option, open_runs, print_json, print_lines, print_notes, quoted
from gpuledger.errors import UsageError

if TYPE_CHECKING:
    from gpuledger.analyze.compare.compare import Comparison


@click.command(
    "compare",
    epilog="""\b
Examples:
  gpuledger compare cudnn.ledger fft.ledger
  gpuledger compare memory_*.txt --markdown""",
)
@click.argument("run_paths", metavar="RUN…", nargs=-1, required=True)
@json_option()
@csv_option()
@click.option("--markdown", "as_markdown", is_flag=True, help="Print a Markdown table.")
def compare_command(run_paths: Sequence[str], as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Compare memory, time and energy of several runs.

    Each run is compared with the first: peak and mean memory, duration, power and energy. RUN is a directory
    NAME.ledger, a folder of such directories, or a file that `gpuledger import` can read.

    For runs with samples of a GPU, memory is the increase over the first sample. Otherwise it is the allocated memory.
    """
    if as_json + as_csv + as_markdown > 1:
        raise UsageError("--json, --csv and --markdown: cannot be combined", hint="use one of them")
    from gpuledger.analyze.compare.compare import compare

    comparison = compare(open_runs(run_paths))
    from gpuledger.report.text import compare_table

    if as_json:
        print_json(compare_table.comparison_document(comparison))
    elif as_csv:
        click.echo(compare_table.comparison_csv(comparison), nl=False)
    elif as_markdown:
        click.echo(compare_table.comparison_markdown(comparison), nl=False)
    else:
        _print_text(comparison, run_paths)


def _print_text(comparison: Comparison, run_paths: Sequence[str]) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.compare_table import comparison_lines
    from gpuledger.report.text.text import next_lines, note_lines

    print_lines(comparison_lines(comparison, Terminal.of(sys.stdout)))
    terminal = Terminal.of(sys.stderr)
    again = " ".join(quoted(path) for path in run_paths[:3]) + (" …" if len(run_paths) > 3 else "")
    following = next_lines([f"gpuledger plot {again} -o compared.png"], terminal)
    print_notes(["", *note_lines(comparison.notes, terminal), *following])
