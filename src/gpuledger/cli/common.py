"""What several commands share: their arguments, the run they open, and where they print."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuledger.cli.scripts import misplaced_options
from gpuledger.errors import EmptyRunError, InputError, UsageError, in_option

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Flags = TypeVar("Flags")
Result = TypeVar("Result")
ALL = "all"
UNREAD_SHOWN = 10
PROGRAM = "gpuledger.program"
"""Where the words of a program are kept in click's context."""
DEVICE_HELP = "PyTorch device: cpu, cuda or cuda:1."


def takes(kind: type[Flags]) -> Callable[[Callable[[Flags], Result]], Callable[..., Result]]:
    """Return a decorator for a command of many parameters: click's values reach it as one ``kind``.

    ``kind`` is a frozen dataclass with a field for each of them, by click's name. It stands below all that is click's.
    """

    def decorate(command: Callable[[Flags], Result]) -> Callable[..., Result]:
        @wraps(command)
        def called(**values: Any) -> Result:
            return command(kind(**values))

        return called

    return decorate


def run_argument() -> Decorator:
    """Return the argument RUN."""
    return click.argument("run_path", metavar="RUN")


def json_option() -> Decorator:
    """Return the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print the complete result as one JSON document.")


def csv_option() -> Decorator:
    """Return the option --csv."""
    return click.option("--csv", "as_csv", is_flag=True, help="Print the complete result as CSV.")


def rows_option(default: int | None, note: str = "", *, least: int = 1) -> Decorator:
    """Return the option -n, how many rows a table has; ``note`` is a default that is not one number."""
    return click.option(
        "-n",
        "rows",
        type=click.IntRange(min=least),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=f"Number of rows to print.{note}",
    )


def force_option() -> Decorator:
    """Return the option --force."""
    return click.option("--force", is_flag=True, help="Overwrite existing output.")


def ray_option() -> Decorator:
    """Return the option --ray."""
    text = "Use a Ray cluster: its address, auto for that of this machine, or local to start Ray here."
    return click.option("--ray", "ray_address", metavar="ADDRESS|auto|local", help=text)


def output_option(text: str, metavar: str = "FILE", default: str | None = None) -> Decorator:
    """Return the option -o, where a file goes; ``text`` says what is written."""
    return click.option(
        "-o", "--output", "output", metavar=metavar, default=default, show_default=default is not None, help=text
    )


def out_option(text: str) -> Decorator:
    """Return the option --out, the name of a run; ``text`` says what else it can be, and the default."""
    return click.option("--out", "out", metavar="NAME", help=f"Name of the run directory{text}")


def gpu_option(text: str, *, default: str | None = None, required: bool = False) -> Decorator:
    """Return the option --gpu, a GPU by its model; ``text`` says which are known, and the default."""
    return click.option(
        "--gpu", "gpu", metavar="GPU", default=default, show_default=default is not None, required=required, help=text
    )


def fit_option() -> Decorator:
    """Return the option --fit, a size in bytes."""
    return click.option(
        "--fit",
        "fit_bytes",
        callback=_parse_size,
        metavar="SIZE",
        help="Say whether the run fits in this GPU memory, such as 24GiB, and which changes make it fit."
        "  [default: not checked]",
    )


def _parse_size(_context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    from gpuledger.units import parse_memory

    with in_option(option.opts[0]):
        return None if text is None else parse_memory(text)


def step_option() -> Decorator:
    """Return the option --step."""
    return _count_option(
        "--step",
        "Step that --at refers to: its peak, its end, or a time since its start.  [default: all recorded steps]",
    )


def depth_option() -> Decorator:
    """Return the option --depth."""
    return _count_option("--depth", "Shorten module paths and scopes to their first N parts.  [default: full paths]")


def _count_option(flag: str, text: str) -> Decorator:
    """Return an option that takes a whole number above 0."""
    return click.option(flag, type=click.IntRange(min=1), metavar="N", help=text)


def at_option() -> Decorator:
    """Return the option --at."""
    return click.option(
        "--at",
        default="peak",
        show_default=True,
        metavar="peak|end|TIME",
        help="Moment to show: peak, end, or a time since the start, such as 1.5s or 350ms.",
    )


RANKS_HELP = "Ranks to keep allocator events of: all, sample, or numbers such as 0,8-11.  [default: all]"


def rank_option() -> Decorator:
    """Return the option --rank."""
    return click.option("--rank", "rank_text", metavar="N|all", help="Rank of the process to show.  [default: all]")


def device_option(note: str = "  [default: all]", *, as_index: bool = True) -> Decorator:
    """Return the option --device, a torch device; the command gets ``device_idx``, or ``device`` as it was given."""
    if not as_index:
        return click.option("--device", "device", metavar="DEVICE", help=DEVICE_HELP + note)
    return click.option("--device", "device_idx", metavar="DEVICE", callback=_device_index, help=DEVICE_HELP + note)


def _device_index(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """Return torch's index of a device, -1 for the CPU; an index stands for itself."""
    if text is None:
        return None
    found = re.fullmatch(r"cpu|-1|(?:cuda:)?(\d{1,6})|cuda", text)
    if found is None:
        raise UsageError(f"--device {text}: not a PyTorch device", hint="Use cpu, or a GPU such as cuda:0")
    return -1 if text in ("cpu", "-1") else int(found[1] or 0)


class ProgramCommand(click.Command):
    """A command followed by a program with its own arguments."""

    program_usage = "SCRIPT [ARGS]… | -m MODULE [ARGS]…"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split off the program's arguments, and let click parse the others."""
        options = [one for one in self.params if isinstance(one, click.Option)]
        with_value = {text for one in options if not one.is_flag for text in one.opts}
        ours, ctx.meta[PROGRAM] = split_line(args, with_value)
        return super().parse_args(ctx, ours)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, after a note on options of it that stand after the program."""
        options = {text for one in self.params for text in one.opts}
        misplaced = [] if ctx.params.get("quiet") else misplaced_options(options, script_of(ctx))
        for word in misplaced:
            print_notes([f"gpuledger: {word} is an argument of the script here: options of gpuledger stand before it"])
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line's pieces."""
        return ["[OPTIONS]", self.program_usage]


def split_line(args: list[str], with_value: Collection[str]) -> tuple[list[str], list[str]]:
    """Return our options, and the program's words with what introduces them (``-m``, ``--``, or nothing)."""
    place = 0
    while place < len(args):
        word = args[place]
        if word in ("-m", "--", "-") or not word.startswith("-"):
            break
        place += 2 if word in with_value else 1
    return args[:place], args[place:]


def script_of(ctx: click.Context) -> tuple[str, ...]:
    """Return the words of a script or a module that the line ends with; ``--`` may introduce them."""
    words: list[str] = ctx.meta[PROGRAM]
    return tuple(words[1:] if words[:1] == ["--"] else words)


def open_run(text: str, *, may_be_rank: bool = False) -> Run:
    """Return the run in ``text``: a directory (the suffix can be omitted), or files of another format.

    Lines of such files that cannot be read are listed on stderr, and the exit status will be 3. ``may_be_rank``: see
    :func:`gpuledger.services.runs.open_run`.

    Raises:
        InputError: it is not a run, damaged, of a newer schema, or of an unknown format.
    """
    from gpuledger.services import runs

    run = runs.open_run(text, may_be_rank=may_be_rank)
    if _is_foreign(run, text):
        tell_unread(run.manifest.imported.unread if run.manifest.imported else ())
    return run


def open_runs(texts: Sequence[str]) -> list[Run]:
    """Return the runs in ``texts``. Others are listed on stderr and skipped, with exit status 3.

    A folder means the runs in it, or its files of another format that are one run each.

    Raises:
        InputError: none of them can be read.
    """
    from gpuledger.services.runs import runs_inside

    unread: list[str] = []
    opened = _open_all([inner for outer in texts for inner in runs_inside(outer, unread)], unread)
    foreign = [run for text, run in opened if _is_foreign(run, text)]
    notes = dict.fromkeys(note for run in foreign for rank in run.ranks for note in rank.manifest.notes)
    print_notes(f"gpuledger: {note}" for note in notes)
    return [run for _, run in opened]


def open_each(text: str) -> list[tuple[str, Run]]:
    """Return the runs in ``text`` with their paths; several for a folder of runs or logs.

    Others are listed on stderr and skipped, with exit status 3.

    Raises:
        InputError: none can be read.
    """
    from gpuledger.services.runs import runs_inside

    unread: list[str] = []
    texts = runs_inside(text, unread)
    return [(text, open_run(text))] if texts == [text] else _open_all(texts, unread)


def _open_all(texts: Sequence[str], unread: Sequence[str]) -> list[tuple[str, Run]]:
    """Return the runs that can be opened, each with its path; others, and what was ``unread``, are named on stderr."""
    opened: list[tuple[str, Run]] = []
    problems: list[InputError] = []
    for text in texts:
        try:
            opened.append((text, open_run(text)))
        except InputError as error:
            problems.append(error)
    if not opened:
        raise problems[0]
    tell_unread([*unread, *(problem.message for problem in problems)])
    return opened


def _is_foreign(run: Run, text: str) -> bool:
    """Return whether the run was imported just now, from the file of an older format that ``text`` names."""
    return run.manifest.imported is not None and run.url is None and run.path.parent != Path(text).parent


def tell_unread(unread: Sequence[str]) -> None:
    """List what could not be read. The command continues, and its exit status is 3."""
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
        if run.manifest.status == "running":
            raise EmptyRunError(
                f"{run.path.name}: nothing is recorded yet",
                hint="The run is still being written, or its recorder was killed. A rank is shown from its first "
                "recorded step on",
            )
        raise EmptyRunError(f"{run.path.name}: nothing was recorded", hint=next(iter(notes), why_empty(())))
    number = parse_rank(rank_text)
    return run.ranks if number is None else (run.rank(number),)


def parse_rank(rank_text: str | None) -> int | None:
    """Return the number that ``--rank`` gives; None for all.

    Raises:
        UsageError: it is neither a number nor ``all``.
    """
    if rank_text is None or rank_text == ALL:
        return None
    if not rank_text.isdecimal():
        raise UsageError(f"--rank {rank_text}: not a rank", hint="Use the number of a rank, or all")
    return int(rank_text)


def choose_devices(ranks: tuple[Rank, ...], device_idx: int | None) -> list[tuple[Rank, int]]:
    """Return each rank with each of its devices, or with ``device_idx``; ranks without a block are left out.

    Raises:
        EmptyRunError: no rank has a block.
    """
    from gpuledger.analyze.memory.lifetimes import device_indices

    chosen = [
        (rank, device) for rank in ranks for device in (device_indices(rank) if device_idx is None else (device_idx,))
    ]
    if not chosen:
        raise EmptyRunError(f"{ranks[0].directory.parent.name}: no allocation was recorded", hint=why_empty(ranks))
    return chosen


def why_empty(ranks: tuple[Rank, ...]) -> str:
    """Return why no rank has a block: the first note of the recording, or a general reason, and which ranks failed."""
    from gpuledger.analyze.memory.empty import because
    from gpuledger.analyze.memory.empty import why_empty as reason_of
    from gpuledger.analyze.ranks.problems import list_problems

    notes = [note for rank in ranks if _records(rank) for note in rank.manifest.notes]
    return because(notes[0] if notes else reason_of(ranks), list_problems(ranks))


def _records(rank: Rank) -> bool:
    """Return whether a rank was to hold allocations; one that was watched or read from a log was not."""
    return rank.manifest.window is not None or not len(rank.table("samples", ("t_ns",)))


def print_lines(lines: Iterable[str]) -> None:
    """Print finished lines to stdout."""
    for line in lines:
        click.echo(line)


def print_notes(lines: Iterable[str]) -> None:
    """Print notes and hints to stderr, after flushing stdout."""
    sys.stdout.flush()
    for line in lines:
        click.echo(line, err=True)


def print_json(document: Any) -> None:
    """Print one JSON document to stdout; ASCII only, so that no terminal or pipe can misread it."""
    click.echo(json.dumps(document, indent=1, ensure_ascii=True, allow_nan=False))


def quoted(path: Path | str) -> str:
    """Return a path as the user's shell takes it."""
    return shlex.quote(str(path))


def gpus_for(run: Run) -> tuple[tuple[str, int], ...]:
    """Return the GPUs of which one is named after an out-of-memory error; empty for a run without such an error."""
    if not any(rank.manifest.oom for rank in run.ranks):
        return ()
    from gpuledger.simulate.catalogue import gpu_sizes

    return gpu_sizes()
