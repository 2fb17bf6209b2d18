"""``gpuledger group``: a run's entries in groups of keywords."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import (
    at_option,
    choose_devices,
    choose_ranks,
    device_option,
    force_option,
    json_option,
    open_each,
    print_json,
    print_lines,
    print_notes,
    quoted,
    rank_option,
    rows_option,
    run_argument,
    step_option,
    takes,
)
from gpuledger.cli.inspect.keywords import keyword_options, read_asked
from gpuledger.cli.inspect.report import choose_file, write_text
from gpuledger.services.grouping import group_places, propose_keywords_for

if TYPE_CHECKING:
    from gpuledger.analyze.keywords.keyword_groups import Grouping
    from gpuledger.model.run import Rank

ROWS = 5
STDOUT = "-"


@dataclass(frozen=True)
class GroupFlags:
    """What the line of ``group`` says."""

    run_path: str
    keywords_texts: tuple[str, ...]
    reported_text: str | None
    rows: int
    proposal: str | None
    force: bool
    at: str
    step: int | None
    rank_text: str | None
    device_idx: int | None
    as_json: bool


@click.command(
    "group",
    epilog="""\b
Examples:
  gpuledger group train.ledger -n 20
  gpuledger group memory.csv --keywords SETME.py --reported-memory 7.4GiB""",
)
@run_argument()
@keyword_options()
@rows_option(ROWS, " Applies to each group.", least=0)
@click.option("--write-keywords", "proposal", metavar="FILE", help="Write a first keyword file for RUN; - is stdout.")
@force_option()
@at_option()
@step_option()
@rank_option()
@device_option()
@json_option()
@takes(GroupFlags)
def group_command(flags: GroupFlags) -> None:
    """Sum the memory of a run into groups that you define.

    A keyword file lists groups and their keywords. Each keyword is searched in the name of an allocation, of the form
    category:module.path:scope:tensor. The first group that matches gets the allocation. Without a keyword file, memory
    is grouped by layer type and by data structure.

    The group Others holds allocations that match no keyword. Untrackable is GPU memory in use that belongs to no
    allocation.
    """
    asked = read_asked(flags.keywords_texts, flags.reported_text)
    if flags.proposal not in (None, STDOUT):
        choose_file(flags.proposal, "keywords.toml", force=flags.force)
    opened = open_each(flags.run_path)
    places = {path: choose_devices(choose_ranks(run, flags.rank_text), flags.device_idx) for path, run in opened}
    if flags.proposal is not None:
        _propose([place for own in places.values() for place in own], flags.proposal, flags)
        return
    groupings = {path: group_places(own, asked, at=flags.at, step=flags.step) for path, own in places.items()}
    from gpuledger.report.text.group_table import group_document

    if flags.as_json:
        documents = {path: group_document(own) for path, own in groupings.items()}
        print_json({"runs": documents} if len(opened) > 1 else documents[opened[0][0]])
        return
    for number, (path, run) in enumerate(opened):
        print_lines([*([""] if number else []), *([f"{run.name}   {path}"] if len(opened) > 1 else [])])
        _print_text(places[path], groupings[path], flags.rows)


def _print_text(places: Sequence[tuple[Rank, int]], groupings: Sequence[Grouping], rows: int) -> None:
    """Print the groups of one run, device by device."""
    from gpuledger.analyze.memory.instant import module_classes
    from gpuledger.analyze.ranks.rank_notes import label_notes
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.group_table import grouping_lines
    from gpuledger.report.text.run_summary import note_lines

    terminal = Terminal.of(sys.stdout)
    for position, ((rank, _), grouping) in enumerate(zip(places, groupings, strict=True)):
        lines = grouping_lines(grouping, rows, terminal, module_classes(rank))
        print_lines([*([""] if position else []), *lines])
    numbers = [rank.number for rank, _ in places]
    of_ranks = [(rank, note) for rank, one in zip(numbers, groupings, strict=True) for note in one.notes]
    notes = label_notes(of_ranks, numbers)
    print_notes(note_lines(notes, Terminal.of(sys.stderr)))


def _propose(places: list[tuple[Rank, int]], proposal: str, flags: GroupFlags) -> None:
    """Write a keyword file that fits the entries of every place."""
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.run_summary import next_lines

    text = propose_keywords_for(places, at=flags.at, step=flags.step)
    if proposal == STDOUT:
        click.echo(text, nl=False)
        return
    write_text(Path(proposal), text)
    following = f"gpuledger group {quoted(flags.run_path)} --keywords {quoted(proposal)}"
    print_notes([f"gpuledger: wrote {proposal}", *next_lines([following], Terminal.of(sys.stderr))])
