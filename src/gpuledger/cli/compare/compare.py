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
    from gpuledger.model.run import Run


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
        raise UsageError("--json, --csv and --markdown: cannot be combined", hint="Use only one of them")
    from gpuledger.analyze.compare.compare import compare
    from gpuledger.analyze.step.time_logs import is_time_log

    runs = open_runs(run_paths)
    times = [run for run in runs if is_time_log(run)]
    if len(times) == len(runs):
        _print_times(times, as_json=as_json, as_csv=as_csv, as_markdown=as_markdown)
        return
    comparison = compare(runs)
    from gpuledger.report.text import compare_table

    if as_json:
        print_json(compare_table.comparison_document(comparison))
    elif as_csv:
        click.echo(compare_table.comparison_csv(comparison), nl=False)
    elif as_markdown:
        click.echo(compare_table.comparison_markdown(comparison), nl=False)
    else:
        _print_text(comparison, run_paths)


def _print_times(runs: Sequence[Run], *, as_json: bool, as_csv: bool, as_markdown: bool) -> None:
    """Print time logs: the time of all layers, each algorithm against the first."""
    from gpuledger.analyze.step.time_logs import read_time_log
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text import time_log_text

    logs = [read_time_log(run) for run in runs]
    if as_json:
        print_json(list(time_log_text.time_log_rows(logs)))
    elif as_csv:
        click.echo(time_log_text.time_log_csv(logs), nl=False)
    elif as_markdown:
        click.echo(time_log_text.time_log_markdown(logs), nl=False)
    else:
        print_lines(time_log_text.time_log_lines(logs, Terminal.of(sys.stdout)))


def _print_text(comparison: Comparison, run_paths: Sequence[str]) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.compare_table import comparison_lines
    from gpuledger.report.text.run_summary import next_lines, note_lines

    print_lines(comparison_lines(comparison, Terminal.of(sys.stdout)))
    terminal = Terminal.of(sys.stderr)
    again = " ".join(quoted(path) for path in run_paths[:3]) + (" …" if len(run_paths) > 3 else "")
    following = next_lines([f"gpuledger plot {again} -o compared.png"], terminal)
    print_notes(["", *note_lines(comparison.notes, terminal), *following])
