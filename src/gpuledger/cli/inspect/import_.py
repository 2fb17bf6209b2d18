"""``gpuledger import``: files that others wrote, as runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import force_option, out_option, print_lines, print_notes, quoted, unread_lines
from gpuledger.errors import InputError, UsageError
from gpuledger.formats.readers import FORMATS, Option, format_of, single_paths

if TYPE_CHECKING:
    from gpuledger.model.run import Run

BAD_INPUT = InputError.exit_code


def _format_options() -> dict[str, tuple[Option, list[str]]]:
    """Return every option that a format declares, with the formats that take it."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for name, one in FORMATS.items():
        for option in one.options:
            found.setdefault(option.name, (option, []))[1].append(name)
    return found


def _with_format_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, (option, formats) in reversed(_format_options().items()):
        text = f"{option.summary} ({', '.join(formats)})"
        command = click.option(option.flag, name, metavar=option.metavar, help=text)(command)
    return command


def _list_of_formats() -> str:
    return "\b\nFormats:\n" + "\n".join(f"  {name:<15}{one.summary}" for name, one in FORMATS.items())


@click.command(
    "import",
    short_help="Make runs of files that others wrote.",
    help="Make a run of files in an older format, FORMAT; every other command can then read it.\n\n"
    "Lines and files that cannot be read are named, the rest is kept, and the exit code is 3. Other commands take "
    f"the files as they are, in the place of a RUN.\n\n{_list_of_formats()}",
    epilog="""\b
Examples:
  gpuledger import nvidia-smi memory_cudnn.txt --interval 10ms
  gpuledger import nvidia-smi memory_*.txt --out old-logs""",
)
@click.argument("format_name", metavar="FORMAT")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@out_option(", or of the folder of several.  [default: the file's, numbered]")
@force_option()
@_with_format_options
def import_command(format_name: str, files: Sequence[str], out: str | None, force: bool, **options: str | None) -> int:
    """Return the exit code, after the runs are written and named."""
    from gpuledger.services.runs import import_files

    given = {name: value for name, value in options.items() if value is not None}
    unread: list[str] = []
    runs = 0
    for paths, place in _choose_places(format_name, [Path(file) for file in files], out, force=force):
        try:
            run = import_files(format_name, paths, place, given, force=force)
        except InputError as error:
            unread.append(error.message)
            continue
        runs += 1
        unread += run.manifest.imported.unread if run.manifest.imported else ()
        _tell(run)
    if not runs:
        raise InputError(unread[0], hint=f"nothing of {len(unread)} was read" if len(unread) > 1 else None)
    print_notes(unread_lines(unread))
    return BAD_INPUT if unread else 0


def _choose_places(
    format_name: str, paths: list[Path], out: str | None, *, force: bool
) -> list[tuple[tuple[Path, ...], Path]]:
    """Return the files of each run with the directory it goes to; nothing is written or removed.

    Raises:
        UsageError: no such format, two runs would have one name, or a run exists and ``force`` is not given.
    """
    from gpuledger.model.run_directory import SUFFIX, choose_directory

    groups = [tuple(paths)]
    if format_of(format_name).one_run_each:
        groups = [(one,) for path in paths for one in single_paths(path, format_name)]
    if len(groups) == 1 and out is None:
        return [(groups[0], choose_directory(None, force=False, stem=groups[0][0].stem))]
    places: dict[Path, tuple[Path, ...]] = {}
    for group in groups:
        place = Path(out or "") if len(groups) == 1 else Path(out or "") / group[0].stem
        place = place.with_name(place.name.removesuffix(SUFFIX) + SUFFIX)
        if place in places:
            taken = places[place][0]
            raise UsageError(f"{group[0]}: its run would have the name of {taken}'s", hint="import them one by one")
        if not force:
            choose_directory(str(place), force=False, stem=place.stem)
        places[place] = group
    return [(group, place) for place, group in places.items()]


def _tell(run: Run) -> None:
    """Print the run's path to stdout and what is to be known about it to stderr."""
    print_lines([str(run.path)])
    notes = [*run.manifest.notes, *(note for rank in run.ranks for note in rank.manifest.notes)]
    print_notes(f"gpuledger: {quoted(run.name)}: {note}" for note in dict.fromkeys(notes))
