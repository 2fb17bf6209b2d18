"""Import other tools' files as runs: select the output paths, and continue after a file that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.errors import InputError, UsageError
from gpuledger.formats.readers import format_of, single_paths
from gpuledger.model.run_directory import SUFFIX, choose_directory

if TYPE_CHECKING:
    from gpuledger.model.run import Run


def import_each(
    format_name: str,
    paths: Sequence[Path],
    options: Mapping[str, Any],
    *,
    out: str | None = None,
    force: bool = False,
    not_read: list[str],
) -> Iterator[Run]:
    """Yield the runs imported from files of another format, each once it is written. Skips files that cannot be read.

    Args:
        format_name: One of :data:`gpuledger.formats.readers.FORMATS`.
        paths: The files, or folders of files.
        out: The run, or the folder of several runs. By default a free name after the file, in the current directory.
        force: Whether an existing run is replaced, once its file was read.
        not_read: Receives a sentence for each file, or part of a file, that could not be read.
        options: Options of the format, by name.

    Raises:
        UsageError: no such format or option, two runs would have the same name, or a run exists and ``force`` is False;
            nothing is written then.
        InputError: after the last file, if none could be read.
    """
    from gpuledger.services.runs import import_files

    runs = 0
    groups, unread = _groups(format_name, paths)
    not_read += unread
    for group, place in _places_of(groups, out, force=force):
        try:
            run = import_files(format_name, group, place, options, force=force)
        except InputError as error:
            not_read.append(error.message)
            continue
        runs += 1
        not_read += run.manifest.imported.unread if run.manifest.imported else ()
        yield run
    if not runs:
        first = not_read[0] if not_read else f"{paths[0]}: no {format_name} files found"
        raise InputError(
            first, hint=f"Check the files: none of the {len(not_read)} could be read" if len(not_read) > 1 else None
        )


def _groups(format_name: str, paths: Sequence[Path]) -> tuple[list[tuple[Path, ...]], tuple[str, ...]]:
    """Return the files of each run, and what in the folders given cannot be read."""
    alone = format_of(format_name).one_run_each
    single, unread = single_paths(paths, format_name)
    return [(one,) for one in single] if single or alone else [tuple(paths)], unread


def _places_of(groups: list[tuple[Path, ...]], out: str | None, *, force: bool) -> list[tuple[tuple[Path, ...], Path]]:
    """Return the files of each run with its directory. Writes and removes nothing."""
    if len(groups) == 1 and out is None:
        return [(groups[0], choose_directory(None, force=False, stem=groups[0][0].stem))]
    places: dict[Path, tuple[Path, ...]] = {}
    for group in groups:
        place = Path(out or "") if len(groups) == 1 else Path(out or "") / group[0].stem
        place = place.with_name(place.name.removesuffix(SUFFIX) + SUFFIX)
        if place in places:
            taken = places[place][0]
            raise UsageError(
                f"{group[0]}: the run would have the same name as that of {taken}",
                hint="Import the files one by one with --out",
            )
        if not force:
            choose_directory(str(place), force=False, stem=place.stem)
        places[place] = group
    return [(group, place) for place, group in places.items()]
