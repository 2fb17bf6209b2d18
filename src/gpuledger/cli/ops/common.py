"""What the commands of ``gpuledger ops`` share: the database, workloads, and the GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import print_lines, print_notes
from gpuledger.config import DEFAULT_DATABASE
from gpuledger.units import DASH

if TYPE_CHECKING:
    from gpuledger.report.base.terminal import TextColumn

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def database_option(default: str | None = DEFAULT_DATABASE, note: str = "") -> Decorator:
    """Return the option --database; ``note`` says what is taken where there is no ``default``."""
    return click.option(
        "--database",
        "database_url",
        default=default,
        show_default=default is not None,
        envvar="GPULEDGER_DATABASE",
        metavar="FILE|URL",
        help="Operator database: a SQLite file, or postgresql://USER@HOST/NAME. "
        f"Environment: GPULEDGER_DATABASE.{note}",
    )


def read_database_option() -> Decorator:
    """Return the option --database of a command that only reads, and can use the measurements in this package."""
    return database_option(
        None,
        f"  [default: {DEFAULT_DATABASE} if it exists, otherwise the measurements of an NVIDIA H200 that come with "
        "gpuledger]",
    )


def note_if_shipped(database_url: str | None) -> None:
    """Print a note on stderr if a command reads the measurements in this package."""
    from gpuledger.ops.database.shipped import shipped_notes

    print_remarks(shipped_notes(database_url))


def print_remarks(notes: Iterable[str]) -> None:
    """Print notes on a result to stderr, each after ``Note``."""
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.run_summary import note_lines

    print_notes(note_lines(notes, Terminal.of(sys.stderr)))


def train_option() -> Decorator:
    """Return the option --train."""
    return click.option(
        "--train", is_flag=True, help="Use a training step (forward, backward, optimizer) instead of inference."
    )


def input_option() -> Decorator:
    """Return the option --input."""
    text = "Input shape, such as 32x3x224x224 or 8x128:int64; repeatable, for one workload each."
    return click.option("--input", "inputs", multiple=True, metavar="SHAPE", help=text)


def seed_option() -> Decorator:
    """Return the option --seed."""
    return click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed.")


def config_option(*, required: bool = False) -> Decorator:
    """Return the option --config."""
    return click.option(
        "--config",
        required=required,
        metavar="FILE|DIR",
        help="Campaign file (campaign.yml), or a folder of older summary.yml files.",
    )


def time_limit_option() -> Decorator:
    """Return the option --time-limit."""
    text = "Start no operator after this time, such as 90s or 10m.  [default: no limit]"
    return click.option("--time-limit", metavar="TIME", help=text)


def trust_files_option() -> Decorator:
    """Return the option --trust-files."""
    return click.option(
        "--trust-files",
        "trust_files",
        is_flag=True,
        help="Trust the given files: they may run Python code, and name folders and hub repositories.",
    )


def workload_argument() -> Decorator:
    """Return the argument WORKLOAD."""
    return click.argument("workload_path", metavar="WORKLOAD")


@contextmanager
def fit_bar(count: int) -> Iterator[Callable[[float], None]]:
    """Show the progress of a fit to ``count`` measurements: a bar on a terminal, one line elsewhere."""
    text = f"fitting a model to {count:,} measurements (cached until the database changes)"
    if not sys.stderr.isatty():
        print_notes([f"gpuledger: {text}"])
        yield lambda _done_frac: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = bar.add_task(text, total=1.0)
        yield lambda done_frac: bar.update(shown, completed=done_frac)


def print_safe(lines: Iterable[str]) -> None:
    """Print lines with names from a user's program; control characters are escaped."""
    from gpuledger.report.base.terminal import Terminal

    print_lines(map(Terminal.of(sys.stdout).text, lines))


def print_next(command: str) -> None:
    """Print the command to try next to stderr."""
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.run_summary import next_lines

    print_notes(["", *next_lines([command], Terminal.of(sys.stderr))])


def table_lines(columns: Sequence[TextColumn], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines, without the columns in which no row has anything, such as energies of a processor."""
    from gpuledger.report.base.terminal import Terminal, TextTable

    kept = [place for place, _ in enumerate(columns) if place == 0 or any(row[place] not in ("", DASH) for row in rows)]
    table = TextTable(
        tuple(columns[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in rows)
    )
    return table.lines(Terminal.of(sys.stdout))
