"""What several commands share: their arguments, the run they open, and where they print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.errors import EmptyRunError, UsageError

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
ALL = "all"


def run_argument() -> Decorator:
    """Return the argument RUN."""
    return click.argument("run_path", metavar="RUN")


def json_option() -> Decorator:
    """Return the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document, never cut.")


def at_option() -> Decorator:
    """Return the option --at."""
    return click.option(
        "--at", default="peak", show_default=True, metavar="INSTANT", help="peak, end, or a time such as 1.5s or 350ms."
    )


def rank_option() -> Decorator:
    """Return the option --rank."""
    return click.option("--rank", "rank_text", metavar="N|all", help="One process of several. Without it: all.")


def device_option() -> Decorator:
    """Return the option --device."""
    return click.option(
        "--device",
        "device_idx",
        type=int,
        metavar="N",
        help="torch's device index, -1 for CPU tensors. Without it: each.",
    )


def open_run(text: str) -> Run:
    """Return the run ``text`` names: a directory, its suffix may be left out, or files of an older format.

    Raises:
        InputError: it is not a run, damaged, of a newer schema, or of no format that is read.
    """
    from gpuledger import api

    return api.open_run(text)


def choose_ranks(run: Run, rank_text: str | None) -> tuple[Rank, ...]:
    """Return the ranks ``--rank`` asks for; all without it.

    Raises:
        EmptyRunError: the run has no rank at all.
        UsageError: the run has no such rank.
    """
    if not run.ranks:
        notes = [str(note) for note in run.manifest.get("notes") or []]
        raise EmptyRunError(f"{run.path.name}: nothing was recorded", hint=next(iter(notes), why_empty(())))
    if rank_text is None or rank_text == ALL:
        return run.ranks
    if not rank_text.isdecimal():
        raise UsageError(f"--rank {rank_text}: not a rank", hint="give a number, or all")
    return (run.rank(int(rank_text)),)


def choose_devices(ranks: tuple[Rank, ...], device_idx: int | None) -> list[tuple[Rank, int]]:
    """Return each rank with each of its devices, or with ``device_idx``; ranks without a block are left out.

    Raises:
        EmptyRunError: no rank has a block.
    """
    from gpuledger.analyze.live import device_indices

    chosen = [
        (rank, device) for rank in ranks for device in (device_indices(rank) if device_idx is None else (device_idx,))
    ]
    if not chosen:
        raise EmptyRunError(f"{ranks[0].directory.parent.name}: no allocation was recorded", hint=why_empty(ranks))
    return chosen


def why_empty(ranks: tuple[Rank, ...]) -> str:
    """Return why no rank has a block: the first note of one that says something, else which steps were not reached."""
    from gpuledger.analyze.empty import why_empty as reason_of

    notes = [str(note) for rank in ranks for note in rank.manifest.get("notes") or []]
    return notes[0] if notes else reason_of(ranks)


def print_lines(lines: Iterable[str]) -> None:
    """Print finished lines to stdout."""
    for line in lines:
        click.echo(line)


def print_notes(lines: Iterable[str]) -> None:
    """Print notes and hints to stderr, after what stdout holds so far."""
    sys.stdout.flush()
    for line in lines:
        click.echo(line, err=True)


def print_json(document: Any) -> None:
    """Print one JSON document to stdout; ASCII only, so that no terminal or pipe can misread it."""
    click.echo(json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False))


def quoted(path: Path | str) -> str:
    """Return a path as the user's shell takes it."""
    return shlex.quote(str(path))
