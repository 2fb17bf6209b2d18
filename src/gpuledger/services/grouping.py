"""Group a run's entries by keywords, for every rank and device."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.errors import InputError

if TYPE_CHECKING:
    from gpuledger.analyze.keywords.keyword_file import KeywordFile
    from gpuledger.analyze.keywords.keyword_groups import Grouping
    from gpuledger.model.run import Rank

DEFAULT = ("layer", "data_structure")
SHIPPED = (*DEFAULT, "mxnet", "tbd")
"""Names of built-in keyword files for --keywords. By default, the first two are used together."""


@dataclass(frozen=True)
class GroupingRequest:
    """How to group. ``keywords`` None means the default files; ``expected_bytes`` is the expected memory of the GPU."""

    keywords: KeywordFile | None = None
    expected_bytes: int | None = None


def group_places(
    places: Iterable[tuple[Rank, int]], asked: GroupingRequest, *, at: str = "peak", step: int | None = None
) -> list[Grouping]:
    """Return the groups of each of ``places`` (rank, device). ``asked.expected_bytes`` is compared with each.

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: no such device, instant or step.
    """
    from gpuledger.analyze.keywords.keyword_groups import group_rank

    groupings = []
    for rank, device_idx in places:
        file = asked.keywords or _default_keywords(rank)
        grouping = group_rank(
            rank, file.dictionaries, at=at, device_idx=device_idx, step=step, expected_bytes=asked.expected_bytes
        )
        groupings.append(replace(grouping, notes=(*file.notes, *grouping.notes)))
    return groupings


def read_keywords(*texts: str) -> KeywordFile:
    """Return the keyword files that ``texts`` name as one, each added to those before it.

    A file is one of our own, a SETME.py, or in TOML.

    Raises:
        InputError: it cannot be read or is invalid; the message names the line.
    """
    from gpuledger.formats.setme import read_setme

    def read(text: str) -> KeywordFile:
        path = Path(text)
        if text in SHIPPED and not path.is_file():
            return _shipped((text,))
        return read_setme(path) if path.suffix == ".py" else _read_toml(path)

    return functools.reduce(lambda base, file: file.added_to(base), map(read, texts))


def propose_keywords_for(places: Iterable[tuple[Rank, int]], *, at: str = "peak", step: int | None = None) -> str:
    """Return a keyword file, in TOML, that matches the entries of all ``places`` (rank, device).

    Raises:
        EmptyRunError: no block was recorded.
        UsageError: no such device, instant or step.
    """
    from gpuledger.analyze.keywords.keyword_proposal import propose_keywords
    from gpuledger.analyze.memory.entries import list_entries
    from gpuledger.analyze.memory.instant import resolve_instant

    instants = ((rank, resolve_instant(rank, at, device, step)) for rank, device in places)
    return propose_keywords([entry for rank, instant in instants for entry in list_entries(rank, instant)])


def _default_keywords(rank: Rank) -> KeywordFile:
    """Return the default keyword files. Tags of older profilers have their own."""
    from gpuledger.analyze.memory.entries import is_tagged

    return _shipped(("mxnet",) if is_tagged(rank) else DEFAULT)


def _shipped(names: tuple[str, ...]) -> KeywordFile:
    from gpuledger.analyze.keywords.keyword_file import KeywordFile, parse_keyword_file

    folder = importlib.resources.files("gpuledger.analyze") / "keywords"
    files = [parse_keyword_file((folder / f"{name}.toml").read_text("utf-8"), name) for name in names]
    return KeywordFile(tuple(one for file in files for one in file.dictionaries))


def _read_toml(path: Path) -> KeywordFile:
    from gpuledger.analyze.keywords.keyword_file import MAX_FILE_BYTES, parse_keyword_file
    from gpuledger.files.reading import read_limited, reading

    with reading(f"--keywords {path}", hint=f"Give a file, or one of {', '.join(SHIPPED)}"):
        content = read_limited(path, MAX_FILE_BYTES)
    try:
        file = parse_keyword_file(content.decode("utf-8-sig").replace("\r\n", "\n"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a keyword file: not UTF-8 at byte {error.start}") from error
    unknown = [name for name in file.extends if name not in SHIPPED]
    if unknown:
        raise InputError(
            f"{path}: extends {unknown[0]!r}: no such keyword file", hint=f"Use one of {', '.join(SHIPPED)}"
        )
    return file.added_to(_shipped(file.extends)) if file.extends else file
