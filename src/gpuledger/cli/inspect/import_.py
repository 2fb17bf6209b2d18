"""``gpuledger import``: files that others wrote, as runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import force_option, out_option, print_lines, print_notes, quoted, unread_lines
from gpuledger.errors import InputError
from gpuledger.formats.readers import FORMATS, ReaderOption

if TYPE_CHECKING:
    from gpuledger.model.run import Run

BAD_INPUT = InputError.exit_code


def _format_options() -> dict[str, tuple[ReaderOption, list[str]]]:
    """Return every option that a format declares, with the formats that take it."""
    found: dict[str, tuple[ReaderOption, list[str]]] = {}
    for name, one in FORMATS.items():
        for option in one.options:
            found.setdefault(option.name, (option, []))[1].append(name)
    return found


def _with_format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, (option, formats) in reversed(_format_options().items()):
        text = f"For {', '.join(formats)}: {option.summary}"
        command = click.option(option.flag, name, metavar=option.metavar, help=text)(command)
    return command


def _list_of_formats() -> str:
    return "\b\nFormats:\n" + "\n".join(f"  {name:<15}{one.summary}" for name, one in FORMATS.items())


@click.command(
    "import",
    help="Convert recordings of other tools into runs.\n\n"
    "Other commands also accept these files directly in place of RUN. Lines and files that cannot be read are listed "
    "and skipped.\n\n"
    f"Exits with status {BAD_INPUT} if anything was skipped.\n\n{_list_of_formats()}",
    epilog="""\b
Examples:
  gpuledger import nvidia-smi memory_cudnn.txt --interval 10ms
  gpuledger import nvidia-smi memory_*.txt --out old-logs""",
)
@click.argument("format_name", metavar="FORMAT")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@out_option(", or of the folder for several.  [default: name of the file, numbered]")
@force_option()
@_with_format_options
def import_command(format_name: str, files: Sequence[str], out: str | None, force: bool, **options: str | None) -> int:
    """Write the runs and print their paths. Return the exit status."""
    from gpuledger.services.imports import import_each

    given = {name: value for name, value in options.items() if value is not None}
    unread: list[str] = []
    for run in import_each(format_name, [Path(file) for file in files], given, out=out, force=force, not_read=unread):
        _print_result(run)
    print_notes(unread_lines(unread))
    return BAD_INPUT if unread else 0


def _print_result(run: Run) -> None:
    """Print the run's path to stdout and what is to be known about it to stderr."""
    print_lines([str(run.path)])
    notes = [*run.manifest.notes, *(note for rank in run.ranks for note in rank.manifest.notes)]
    print_notes(f"gpuledger: {quoted(run.name)}: {note}" for note in dict.fromkeys(notes))
