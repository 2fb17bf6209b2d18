"""What the commands of ``gpuledger ops`` share: the book, workloads, and the card."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import print_lines, print_notes
from gpuledger.config import DEFAULT_BOOK

if TYPE_CHECKING:
    from gpuledger.ops.workloads.workload import Workload
    from gpuledger.report.base.terminal import Column

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def book_option(default: str | None = DEFAULT_BOOK, note: str = "") -> Decorator:
    """Return the option --book; ``note`` says what is taken where there is no ``default``."""
    return click.option(
        "--book",
        "book_url",
        default=default,
        show_default=default is not None,
        envvar="GPULEDGER_BOOK",
        metavar="FILE|URL",
        help=f"The operator book: a SQLite file, or postgresql://USER@HOST/NAME. Also GPULEDGER_BOOK.{note}",
    )


def train_option() -> Decorator:
    """Return the option --train."""
    return click.option("--train", is_flag=True, help="A training step: forward, backward, optimizer.")


def seed_option() -> Decorator:
    """Return the option --seed."""
    return click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed.")


def config_option(*, required: bool = False) -> Decorator:
    """Return the option --config."""
    return click.option(
        "--config",
        required=required,
        metavar="FILE|DIR",
        help="A campaign.yml, or a folder of older summary.yml files.",
    )


def time_limit_option() -> Decorator:
    """Return the option --time-limit."""
    return click.option(
        "--time-limit", metavar="TIME", help="Start no operator after this time, such as 10m; not with Ray."
    )


def trust_files_option() -> Decorator:
    """Return the option --trust-files."""
    return click.option(
        "--trust-files",
        "trust_files",
        is_flag=True,
        help="Let files name code to import and run (package.module:factory), folders and hub repositories.",
    )


def workload_argument() -> Decorator:
    """Return the argument WORKLOAD."""
    return click.argument("workload_path", metavar="WORKLOAD")


def open_workload(text: str) -> Workload:
    """Return the workload in the file ``text`` names; its suffix may be left out.

    Raises:
        InputError: there is none, or it is damaged.
    """
    from gpuledger.ops.workloads.workload import SUFFIX, read_workload

    return read_workload(Path(text + SUFFIX) if not Path(text).exists() and is_workload(text) else Path(text))


def is_workload(text: str) -> bool:
    """Return whether ``text`` names a file; the suffix of a workload may be left out."""
    from gpuledger.ops.workloads.workload import SUFFIX

    return Path(text).exists() or Path(text + SUFFIX).exists()


def capture_named(model: str, batch: int, cards: Sequence[str | None], *, train: bool) -> Workload:
    """Return a model captured now: on the first of ``cards`` that the catalogue has, as a virtual one, else on the CPU.

    Raises:
        UsageError: no such model.
        InputError: the model cannot be made, or does not take the inputs of its own configuration.
    """
    from gpuledger.ops.predict.choose import is_catalogued
    from gpuledger.ops.workloads.captures import asked_for, capture_model
    from gpuledger.ops.workloads.workload_spec import Wanted

    place = next((name for name in cards if name and is_catalogued(name)), "cpu")
    return capture_model(asked_for(Wanted(model, "training" if train else "inference", batch=batch)), place)


def say_note(text: str) -> None:
    """Say on stderr what takes a while."""
    print_notes([f"gpuledger: {text}"])


def print_safe(lines: Iterable[str]) -> None:
    """Print lines that hold names of others: what a terminal would obey is escaped."""
    from gpuledger.report.base.terminal import Terminal

    print_lines(map(Terminal.of(sys.stdout).text, lines))


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines, without the columns in which no row has anything, such as energies of a processor."""
    from gpuledger.report.base.terminal import Table, Terminal

    kept = [place for place, _ in enumerate(columns) if place == 0 or any(row[place] not in ("", "-") for row in rows)]
    table = Table(tuple(columns[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in rows))
    return table.lines(Terminal.of(sys.stdout))
