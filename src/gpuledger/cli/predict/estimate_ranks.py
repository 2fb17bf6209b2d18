"""``gpuledger estimate`` with ranks: estimates of sharded training, and the smallest number of ranks that fits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import print_json, print_lines, print_notes, quoted
from gpuledger.errors import BudgetExceededError, UsageError

if TYPE_CHECKING:
    from gpuledger.simulate.estimate.run import Order

_RANK_OPTIONS = ("world_size", "find_world_size", "ranks")
_ROWS = 10


def rank_options(command: Any) -> Any:
    """Add the options on ranks to a command."""
    for option in (
        click.option("--ranks", metavar="LIST", help="Ranks to simulate, such as 0,3, or all. Needs --world-size."),
        click.option(
            "--find-world-size",
            type=click.IntRange(1),
            metavar="MOST",
            help="Find the smallest number of ranks that fits, up to MOST.  [default: no search]",
        ),
        click.option(
            "--world-size",
            type=int,
            metavar="N",
            help="Estimate sharded training (FSDP, DDP, tensor parallel, pipeline) with N ranks, one GPU each.  "
            "[default: one process without ranks]",
        ),
    ):
        command = option(command)
    return command


def has_ranks(flags: dict[str, Any]) -> bool:
    """Return whether an option on ranks is given.

    Raises:
        UsageError: the options cannot be combined.
    """
    given = [name for name in _RANK_OPTIONS if flags[name] is not None]
    if not given:
        return False
    if given == ["ranks"]:
        raise UsageError("--ranks: the number of ranks is missing", hint="For example --world-size 8 --ranks 0,7")
    if flags["find_world_size"] is not None and len(given) > 1:
        raise UsageError("--find-world-size cannot be combined with --world-size or --ranks")
    if flags["find_batch"]:
        raise UsageError("--find-batch and ranks cannot be combined", hint="Try batch sizes with --world-size N")
    if flags["fit_bytes"] is not None:
        raise UsageError("--fit and ranks cannot be combined", hint="Find the number of ranks with --find-world-size")
    if flags["gpu"].strip().lower() == "all" and flags["gpu_memory"] is None:
        raise UsageError("--gpu all and ranks cannot be combined", hint="Name one GPU with --gpu")
    return True


def estimate_all_ranks(order: Order, flags: dict[str, Any], directory: Path) -> None:
    """Estimate some ranks of a program, and print their table.

    Raises:
        BudgetExceededError: ``--require-fit`` is given, and a rank does not fit.
    """
    from gpuledger.cli.predict import documents
    from gpuledger.cli.predict import ranks_text as text
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.run_summary import next_lines, note_lines
    from gpuledger.simulate.estimate.ranks import check_ranks, estimate_program_ranks

    world_size = flags["world_size"]
    check_ranks(world_size)
    output = None if flags["quiet"] else sys.stderr
    ranks = _listed(flags["ranks"], world_size)
    found = estimate_program_ranks(order, world_size, directory, output, ranks=ranks, replace=flags["force"])
    if flags["as_json"]:
        print_json(documents.ranks_document(found))
    else:
        print_lines(text.ranks_lines(found, Terminal.of(sys.stdout), _ROWS))
        terminal = Terminal.of(sys.stderr)
        path = quoted(found.run.path)
        following = next_lines([f"gpuledger show {path}", f"gpuledger report {path}"], terminal)
        print_notes(["", *note_lines(found.notes, terminal), *following])
    if flags["require_fit"] and not found.fits:
        raise BudgetExceededError(
            f"{found.verdict} on {world_size} × {order.card.key}", hint="gpuledger estimate --find-world-size 64 …"
        )


def find_world_size(order: Order, flags: dict[str, Any]) -> None:
    """Find the smallest number of ranks that fits, and print what was tried.

    Raises:
        BudgetExceededError: ``--require-fit`` is given, and no number of ranks fits.
    """
    from gpuledger.cli.predict import documents
    from gpuledger.cli.predict import ranks_text as text
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.simulate.estimate.world_search import search_world_size

    def say(line: str) -> None:
        click.echo(line, err=True)

    found = search_world_size(order, say, flags["find_world_size"])
    if flags["as_json"]:
        print_json(documents.world_document(found, order.card))
    else:
        print_lines(text.world_lines(found, order.card, Terminal.of(sys.stdout)))
    if flags["require_fit"] and found.smallest is None:
        raise BudgetExceededError(f"{order.card.key}: {found.why}", hint="Choose a larger GPU with --gpu")


def _listed(text: str | None, world_size: int) -> tuple[int, ...]:
    """Return the ranks in ``0,3`` or ``all``; empty for the default.

    Raises:
        UsageError: it is no list of ranks.
    """
    if text is None:
        return ()
    if text.strip().lower() == "all":
        return tuple(range(world_size))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(
            f"--ranks {text}: expected numbers with commas between them, or all", hint="For example --ranks 0,3"
        )
    return tuple(sorted({int(word) for word in words}))
