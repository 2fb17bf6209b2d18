"""What several commands share: their arguments, the run they open, and where they print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from gpuledger.errors import EmptyRunError, InputError, UsageError

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
ALL = "all"
UNREAD_SHOWN = 10


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

    Lines of such files that cannot be read are named on stderr, and the command will end with 3.

    Raises:
        InputError: it is not a run, damaged, of a newer schema, or of no format that is read.
    """
    from gpuledger.services import api

    run = api.open_run(text)
    if _is_foreign(run, text):
        _tell_unread(run.manifest.imported.unread if run.manifest.imported else ())
    return run


def open_runs(texts: Sequence[str]) -> list[Run]:
    """Return the runs ``texts`` name; what cannot be read is named on stderr, skipped, and makes the exit code 3.

    A folder stands for the runs in it, or for the files of an older format that are a run each.

    Raises:
        InputError: none of them can be read.
    """
    runs: list[Run] = []
    problems: list[InputError] = []
    notes: dict[str, None] = {}
    for text in (inner for outer in texts for inner in _inside(outer)):
        try:
            runs.append(open_run(text))
        except InputError as error:
            problems.append(error)
            continue
        if _is_foreign(runs[-1], text):
            notes.update(dict.fromkeys(note for rank in runs[-1].ranks for note in rank.manifest.notes))
    if not runs:
        raise problems[0]
    print_notes(f"gpuledger: {note}" for note in notes)
    _tell_unread([problem.message for problem in problems])
    return runs


def _is_foreign(run: Run, text: str) -> bool:
    """Return whether the run was imported just now, from the file of an older format that ``text`` names."""
    return run.manifest.imported is not None and run.path.parent != Path(text).parent


def _inside(text: str) -> list[str]:
    """Return what a folder stands for: the runs in it, or files that are a run each; else ``text`` itself."""
    from gpuledger.formats.readers import find_format, single_paths
    from gpuledger.model.run import SUFFIX

    path = Path(text)
    if not path.is_dir() or (path / "manifest.json").is_file():
        return [text]
    runs = sorted(path.glob(f"*{SUFFIX}/manifest.json"))
    if runs:
        return [str(manifest.parent) for manifest in runs]
    format_name = find_format(path)
    return [text] if format_name is None else [str(one) for one in single_paths(path, format_name)]


def _tell_unread(unread: Sequence[str]) -> None:
    """Name what could not be read; the command goes on and ends with the exit code of bad input."""
    print_notes(unread_lines(unread))
    context = click.get_current_context(silent=True)
    if unread and context is not None:
        context.find_root().ensure_object(dict)["exit_code"] = InputError.exit_code


def unread_lines(unread: Sequence[str]) -> list[str]:
    """Return what could not be read, a line each; the rest of a long list is counted."""
    lines = [f"gpuledger: not read: {reason}" for reason in unread[:UNREAD_SHOWN]]
    rest = len(unread) - UNREAD_SHOWN
    return [*lines, f"gpuledger: not read: … and {rest:,} more"] if rest > 0 else lines


def choose_ranks(run: Run, rank_text: str | None) -> tuple[Rank, ...]:
    """Return the ranks ``--rank`` asks for; all without it.

    Raises:
        EmptyRunError: the run has no rank at all.
        UsageError: the run has no such rank.
    """
    if not run.ranks:
        notes = list(run.manifest.notes)
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
    from gpuledger.analyze.memory.live import device_indices

    chosen = [
        (rank, device) for rank in ranks for device in (device_indices(rank) if device_idx is None else (device_idx,))
    ]
    if not chosen:
        raise EmptyRunError(f"{ranks[0].directory.parent.name}: no allocation was recorded", hint=why_empty(ranks))
    return chosen


def why_empty(ranks: tuple[Rank, ...]) -> str:
    """Return why no rank has a block: the first note of a recording that says something, else what it does hold."""
    from gpuledger.analyze.memory.empty import why_empty as reason_of

    notes = [note for rank in ranks if _records(rank) for note in rank.manifest.notes]
    return notes[0] if notes else reason_of(ranks)


def _records(rank: Rank) -> bool:
    """Return whether a rank was to hold allocations; one that was watched or read from a log was not."""
    return rank.manifest.window is not None or not len(rank.table("samples", ("t_ns",)))


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


class ProgramCommand(click.Command):
    """A command whose line ends with a program and its arguments: nothing after its first word is ours."""

    program_usage: ClassVar[str] = "SCRIPT [ARGS]… | -m MODULE [ARGS]…"
    begins_program: ClassVar[tuple[str, ...]] = ("-m",)
    """The words with a dash that begin the program; a word without one always does, unless an option takes it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the program's words apart in ``ctx.meta["gpuledger.program"]``, and let click read ours."""
        ours, program = self.split_line(args)
        ctx.meta["gpuledger.program"] = tuple(program)
        return super().parse_args(ctx, ours)

    def split_line(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Return our options, and the program's words with what introduces them (``-m``, ``--``, or nothing)."""
        options = [one for one in self.params if isinstance(one, click.Option)]
        with_value = {text for one in options if not one.is_flag for text in one.opts}
        number = 0
        while number < len(args) and args[number].startswith("-") and args[number] not in self.begins_program:
            number += 2 if args[number] in with_value else 1
        return args[:number], args[number:]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line's pieces."""
        return ["[OPTIONS]", self.program_usage]
