"""What ``group`` and ``plot`` share: the options --keywords and --expected, and a run grouped by them."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import Decorator, choose_devices, choose_ranks
from gpuledger.errors import InputError, UsageError

if TYPE_CHECKING:
    from gpuledger.analyze.keywords.keyword_file import KeywordFile
    from gpuledger.analyze.keywords.keyword_groups import Grouping
    from gpuledger.model.run import Rank, Run
    from gpuledger.report.plots.bar_plot import Panel

DEFAULT = ("layer", "data_structure")
SHIPPED = (*DEFAULT, "mxnet", "tbd")
"""Names that --keywords takes for files of our own; without it the first two are used together."""
_KEYWORDS_HELP = (
    "A keyword file (TOML), an old SETME.py, or one of: layer, data_structure, mxnet, tbd.  "
    "[default: layer and data_structure]"
)
_EXPECTED_HELP = (
    "What the GPU held by another tool's word, such as 11.2GiB; a bare number is GiB. Without it: the balance."
)
_NUMBER = re.compile(r"\s*[0-9]+(\.[0-9]*)?\s*|\s*\.[0-9]+\s*", re.ASCII)


@dataclass(frozen=True)
class Asked:
    """What the user asked to group by; ``keywords`` is None for the default dictionaries."""

    keywords: KeywordFile | None
    expected_bytes: int | None


def keyword_options() -> Decorator:
    """Return the options --keywords and --expected; the command gets them as ``keywords_text``, ``expected_text``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option("--expected", "expected_text", metavar="SIZE", help=_EXPECTED_HELP)(command)
        return click.option("--keywords", "keywords_text", metavar="FILE", help=_KEYWORDS_HELP)(command)

    return decorate


def read_asked(keywords_text: str | None, expected_text: str | None) -> Asked:
    """Return what --keywords and --expected say; a SETME.py may give both.

    Raises:
        InputError: the file cannot be read, or something in it is wrong.
        UsageError: --expected is not a size.
    """
    keywords = None if keywords_text is None else read_keywords(keywords_text)
    if expected_text is not None:
        return Asked(keywords, parse_expected(expected_text))
    return Asked(keywords, keywords.expected_bytes if keywords else None)


def group_places(places: Iterable[tuple[Rank, int]], asked: Asked, *, at: str, step: int | None) -> list[Grouping]:
    """Return each of ``places`` (rank, device) in groups; what --expected says is said of each.

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


def bar_panels(run: Run, asked: Asked) -> list[Panel]:
    """Return the panels of a bar chart of ``run``: one per rank and device, at its peak.

    Raises:
        EmptyRunError: no block was recorded.
    """
    from gpuledger.report.base.phrases import device_label
    from gpuledger.report.plots.bar_plot import Panel

    places = choose_devices(choose_ranks(run, None), None)
    groupings = group_places(places, asked, at="peak", step=None)
    if len(groupings) == 1:
        return [Panel(run.name, groupings[0])]
    return [Panel(f"{run.name} · rank {one.rank} · {device_label(one.device_idx)}", one) for one in groupings]


def read_keywords(text: str) -> KeywordFile:
    """Return the keyword file that ``text`` names: one of our own, a SETME.py, or a file in TOML.

    Raises:
        InputError: it cannot be read, or something in it is wrong; it says in which line.
    """
    from gpuledger.formats.setme import read_setme

    path = Path(text)
    if text in SHIPPED and not path.is_file():
        return _shipped((text,))
    return read_setme(path) if path.suffix == ".py" else _read_toml(path)


def parse_expected(text: str) -> int:
    """Return the bytes that ``11.2GiB`` or ``11.2`` (GiB) mean.

    Raises:
        UsageError: it is not a size.
    """
    from gpuledger.units import parse_bytes

    try:
        return parse_bytes(f"{text}GiB" if _NUMBER.fullmatch(text) else text)
    except UsageError as error:
        raise UsageError(f"--expected {error.message}", hint="such as 11.2GiB, or 11.2, which is GiB") from error


def _default_keywords(rank: Rank) -> KeywordFile:
    """Return the default dictionaries; tags of older profilers have their own."""
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

    with reading(f"--keywords {path}", hint=f"a file, or one of {', '.join(SHIPPED)}"):
        content = read_limited(path, MAX_FILE_BYTES)
    try:
        return parse_keyword_file(content.decode("utf-8-sig").replace("\r\n", "\n"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a keyword file: not UTF-8 at byte {error.start}") from error
