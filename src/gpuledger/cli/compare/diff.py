"""``gpuledger diff``: what grew and what shrank from one run to another."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.common import (
    at_option,
    depth_option,
    device_option,
    force_option,
    json_option,
    open_run,
    parse_rank,
    print_json,
    print_lines,
    print_notes,
    quoted,
    rank_option,
    rows_option,
    step_option,
    takes,
)
from gpuledger.cli.inspect.report import choose_file, echo_path, write_text
from gpuledger.errors import UsageError
from gpuledger.model.run_directory import SUFFIX
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.compare.diff import Diff
    from gpuledger.report.base.terminal import Terminal

WORDS = {
    "category": ("category", "module"),
    "module": ("category", "module"),
    "phase": ("category", "module", "phase"),
    "tensor": ("category", "module", "tensor"),
    "scope": ("category", "module", "scope"),
    "line": ("category", "line"),
    "function": ("category", "function"),
}
"""The columns that each ``--by`` groups by; ``--json`` always has category and module."""
ROWS = 15


@dataclass(frozen=True)
class DiffFlags:
    """What the line of ``diff`` says."""

    before_path: str
    after_path: str
    by: str | None
    at: str
    step: int | None
    rows: int
    depth: int | None
    rank_text: str | None
    device_idx: int | None
    as_json: bool
    html: str | None
    force: bool


@click.command(
    "diff",
    epilog="""\b
Examples:
  gpuledger diff before.ledger after.ledger --by module --depth 3
  gpuledger diff before-1,before-2,before-3 after-1,after-2,after-3""",
)
@click.argument("before_path", metavar="BEFORE")
@click.argument("after_path", metavar="AFTER")
@click.option(
    "--by",
    type=click.Choice(list(WORDS)),
    help="What to break memory down by.  [default: two tables, by category and by module]",
)
@at_option()
@step_option()
@rows_option(ROWS)
@depth_option()
@rank_option()
@device_option()
@json_option()
@click.option("--html", "html", metavar="FILE", help="Write an HTML page instead of text.")
@force_option()
@takes(DiffFlags)
def diff_command(flags: DiffFlags) -> None:
    """Show what changed between two runs.

    Shows the main values of both runs, then the change of allocated memory at the peak, by category and module. The
    rows sum to the total change. Changes within noise are marked. Differences in GPU, versions or number of ranks are
    noted.

    BEFORE and AFTER are directories NAME.ledger, or files that `gpuledger import` can read. To compare groups of runs,
    separate the runs of each by commas. Differences of the means are shown with a 95 % confidence interval.

    To compare two ranks of a run, name their directories, such as NAME.ledger/rank-0 and NAME.ledger/rank-1.
    """
    groups = [_runs_of(path) for path in (flags.before_path, flags.after_path)]
    if any(len(group) > 1 for group in groups):
        _diff_groups(flags, *groups)
        return
    if flags.as_json and flags.html:
        raise UsageError("--json and --html: cannot be combined", hint="Use only one of them")
    place = choose_file(flags.html, "diff.html", force=flags.force) if flags.html else None
    from gpuledger.analyze.compare.diff import diff_runs

    by, rank = WORDS[flags.by or "category"], parse_rank(flags.rank_text)
    before, after = (open_run(path, may_be_rank=True) for path in (flags.before_path, flags.after_path))
    diff = diff_runs(before, after, by, flags.depth, flags.at, flags.step, rank, flags.device_idx)
    if flags.as_json:
        from gpuledger.report.json.diff_document import diff_document

        print_json(diff_document(diff))
    elif place is not None:
        from gpuledger.report.html.diff_html import render_diff

        written = write_text(place, render_diff(diff, _tables(flags)))
        echo_path(place)
        print_notes([f"gpuledger: wrote {place} ({format_bytes(written)}), open it in any browser"])
    else:
        _print_text(diff, flags)


def _runs_of(text: str) -> list[str]:
    """Return the paths in a list that is separated by commas; a path with a comma that exists is one path."""
    parts = [part for part in text.split(",") if part]
    is_path = Path(text).exists() or Path(text + SUFFIX).exists()
    return [text] if is_path or len(parts) < 2 else parts


def _refuse_twice(texts: list[str]) -> None:
    """Refuse a run that is in the groups twice, also by another path: the interval of the means would be too narrow.

    Raises:
        UsageError: a run was given twice.
    """
    names: dict[Path, str] = {}
    for text in texts:
        place = Path(text if Path(text).exists() else text + SUFFIX).resolve()
        if place in names:
            same = "twice" if names[place] == text else f"twice, also as {names[place]}"
            hint = "Give each run once: the same run again says nothing about how runs vary"
            raise UsageError(f"{text}: given {same}", hint=hint)
        names[place] = text


def _diff_groups(flags: DiffFlags, before: list[str], after: list[str]) -> None:
    """Print how two groups of runs differ.

    Raises:
        UsageError: an option was given that groups do not have, or a run was given twice.
    """
    for name, given in (("--html", flags.html), ("--by", flags.by), ("--step", flags.step)):
        if given:
            raise UsageError(f"{name}: cannot be used with groups of runs", hint="Compare two runs, or leave it out")
    if flags.at != "peak":
        raise UsageError("--at: cannot be used with groups of runs", hint="Compare two runs, or leave it out")
    _refuse_twice([*before, *after])
    from gpuledger.analyze.compare.group_diff import diff_groups

    groups = [[open_run(path) for path in paths] for paths in (before, after)]
    rank = parse_rank(flags.rank_text)
    diff = diff_groups(*groups, depth=flags.depth, rank=rank, device_idx=flags.device_idx)
    if flags.as_json:
        from gpuledger.report.json.diff_document import group_diff_document

        print_json(group_diff_document(diff))
        return
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.group_diff_text import group_diff_lines
    from gpuledger.report.text.run_summary import note_lines

    print_lines(group_diff_lines(diff, flags.rows, Terminal.of(sys.stdout)))
    print_notes(note_lines(diff.notes, Terminal.of(sys.stderr)))


def _tables(flags: DiffFlags) -> tuple[str, ...]:
    """Return what the accounts are shown by, a table each."""
    return (flags.by,) if flags.by else ("category", "module")


def _print_text(diff: Diff, flags: DiffFlags) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.diff_text import diff_lines

    print_lines(diff_lines(diff, _tables(flags), flags.rows, Terminal.of(sys.stdout)))
    print_notes(_closing_lines(diff, flags, Terminal.of(sys.stderr)))


def _closing_lines(diff: Diff, flags: DiffFlags, terminal: Terminal) -> list[str]:
    from gpuledger.report.text.run_summary import next_lines, note_lines

    notes = note_lines(diff.notes, terminal)
    if diff.is_empty:
        return notes
    closer = "tensor" if flags.by == "module" else "module"
    paths = f"{quoted(flags.before_path)} {quoted(flags.after_path)}"
    commands = [f"gpuledger diff {paths} --by {closer}"] if diff.main.changes() else []
    commands.append(f"gpuledger diff {paths} --html diff.html")
    return ["", *notes, *next_lines(commands, terminal)]
