"""What ``group`` and ``plot`` share: the options --keywords and --reported-memory, and the panels of bars."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.common import Decorator, choose_devices, choose_ranks
from gpuledger.errors import UsageError
from gpuledger.services.grouping import GroupingRequest, group_places, read_keywords

if TYPE_CHECKING:
    from gpuledger.model.run import Run
    from gpuledger.report.plots.bar_plot import Panel

_KEYWORDS_HELP = (
    "Keyword file: TOML, an older SETME.py, or one of layer, data_structure, mxnet, tbd; repeatable, to add groups.  "
    "[default: layer and data_structure]"
)
_REPORTED_HELP = (
    "GPU memory in use as reported by another tool, such as 11.2GiB; without a unit, GiB.  [default: from the run]"
)
_NUMBER = re.compile(r"\s*[0-9]+(\.[0-9]*)?\s*|\s*\.[0-9]+\s*", re.ASCII)


def keyword_options() -> Decorator:
    """Return the options --keywords and --reported-memory, as ``keywords_texts`` and ``reported_text``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option("--reported-memory", "reported_text", metavar="SIZE", help=_REPORTED_HELP)(command)
        option = click.option("--keywords", "keywords_texts", metavar="FILE", multiple=True, help=_KEYWORDS_HELP)
        return option(command)

    return decorate


def read_asked(keywords_texts: Sequence[str], reported_text: str | None) -> GroupingRequest:
    """Return what --keywords and --reported-memory say; a SETME.py may give both.

    Raises:
        InputError: the file cannot be read, or something in it is wrong.
        UsageError: --reported-memory is not a size.
    """
    keywords = read_keywords(*keywords_texts) if keywords_texts else None
    if reported_text is not None:
        return GroupingRequest(keywords, parse_reported(reported_text))
    return GroupingRequest(keywords, keywords.expected_bytes if keywords else None)


def bar_panels(run: Run, asked: GroupingRequest) -> list[Panel]:
    """Return the panels of a bar chart of ``run``: one per rank and device, at its peak.

    Raises:
        EmptyRunError: no block was recorded.
    """
    from gpuledger.report.plots.bar_plot import Panel
    from gpuledger.units import device_label

    places = choose_devices(choose_ranks(run, None), None)
    groupings = group_places(places, asked, at="peak", step=None)
    if len(groupings) == 1:
        return [Panel(run.name, groupings[0])]
    return [Panel(f"{run.name} · rank {one.rank} · {device_label(one.device_idx)}", one) for one in groupings]


def parse_reported(text: str) -> int:
    """Return the bytes that ``11.2GiB`` or ``11.2`` (GiB) mean.

    Raises:
        UsageError: it is not a size.
    """
    from gpuledger.units import parse_bytes

    try:
        return parse_bytes(f"{text}GiB" if _NUMBER.fullmatch(text) else text)
    except UsageError as error:
        raise UsageError(
            f"--reported-memory {error.message}", hint="Use a size such as 11.2GiB; a number without a unit is in GiB"
        ) from error
