"""What the commands of ``gpuledger ops`` share: the book, workloads, and the card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.config import DEFAULT_BOOK

if TYPE_CHECKING:
    from gpuledger.operators.workload import Workload

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def book_option() -> Decorator:
    """Return the option --book."""
    return click.option(
        "--book",
        "book_url",
        default=DEFAULT_BOOK,
        show_default=True,
        envvar="GPULEDGER_BOOK",
        metavar="FILE|URL",
        help="The operator book: a SQLite file, or postgresql://USER@HOST/NAME. Also GPULEDGER_BOOK.",
    )


def workload_argument() -> Decorator:
    """Return the argument WORKLOAD."""
    return click.argument("workload_path", metavar="WORKLOAD")


def open_workload(text: str) -> Workload:
    """Return the workload in the file ``text`` names; its suffix may be left out.

    Raises:
        InputError: there is none, or it is damaged.
    """
    from gpuledger.operators.workload import SUFFIX, read_workload

    path = Path(text)
    with_suffix = path.with_name(path.name + SUFFIX)
    return read_workload(with_suffix if not path.exists() and with_suffix.exists() else path)
