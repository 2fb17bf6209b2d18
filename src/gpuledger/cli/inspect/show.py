"""``gpuledger show``: where the bytes are at one instant."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gpuledger.analyze.view.options import GROUPINGS, ViewOptions
from gpuledger.cli.common import (
    at_option,
    choose_devices,
    choose_ranks,
    depth_option,
    device_option,
    json_option,
    open_run,
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
from gpuledger.errors import UsageError

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import RunView
    from gpuledger.model.run import Run
    from gpuledger.report.text.show_text import TableOptions

BYTES_ALONE = ("category", "tensor")
"""What the allocator tells apart and no kernel or operator has."""
SORTS = ("bytes", "time", "energy", "forward", "backward")
ROWS, ROWS_OF_TWO = 20, 10


@dataclass(frozen=True)
class ShowFlags:
    """What the line of ``show`` says."""

    run_path: str
    by: str | None
    at: str
    step: int | None
    rows: int | None
    depth: int | None
    sort: str | None
    fold: bool
    per_sample: bool
    unknown: bool
    rank_text: str | None
    device_idx: int | None
    as_json: bool


@click.command(
    "show",
    short_help="Show where the bytes are at one instant.",
    epilog="""\b
Examples:
  gpuledger show train.ledger --by module --depth 2
  gpuledger show train.ledger --by module --sort energy --fold""",
)
@run_argument()
@click.option(
    "--by", type=click.Choice(list(GROUPINGS)), help="One table by this. Without it: categories, then modules."
)
@at_option()
@step_option()
@rows_option(None, f" The rest is summed.  [default: {ROWS}, or {ROWS_OF_TWO} each where two tables are shown]")
@depth_option()
@click.option("--sort", type=click.Choice(SORTS), help="Largest first by this.  [default: bytes, else time]")
@click.option("--fold", is_flag=True, help="Fold layers whose paths differ in a number alone: layers.* (32).")
@click.option("--per-sample", is_flag=True, help="Show times and joules of one sample of a step's batch.")
@click.option("--unknown", is_flag=True, help="Show what has no name yet, with stacks, and how to name it.")
@rank_option()
@device_option()
@json_option()
@takes(ShowFlags)
def show_command(flags: ShowFlags) -> None:
    """Show where the bytes are at one instant, and where a step's time and energy go.

    RUN is a directory NAME.ledger. The rows always sum to the total: what is not shown is summed in one row, and
    `rounding` is what the allocator gave beyond what was asked for. Several ranks or devices stand side by side; with
    --by the table below is of the one whose peak is highest.
    """
    _refuse_mixed(flags)
    run = open_run(flags.run_path)
    if _print_cards(run, flags.as_json):
        return
    from gpuledger.analyze.view.view import build_view
    from gpuledger.report.text.show_text import TableOptions

    options = ViewOptions(flags.at, flags.step, flags.by, flags.depth, flags.sort, flags.fold)
    view = build_view(run, options, devices=choose_devices(choose_ranks(run, flags.rank_text), flags.device_idx))
    tables = TableOptions(flags.rows, flags.per_sample)
    if flags.unknown:
        _print_unknown(view, tables, flags.as_json)
    else:
        _print_view(view, tables, quoted(flags.run_path), flags.as_json)


def _refuse_mixed(flags: ShowFlags) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: some of them do not.
    """
    sorts = flags.sort not in (None, "bytes")
    if flags.by in BYTES_ALONE and (sorts or flags.fold or flags.per_sample):
        refused = f"--sort {flags.sort}" if sorts else "--fold" if flags.fold else "--per-sample"
        raise UsageError(f"--by {flags.by}: takes no {refused}", hint="it lists bytes alone")
    if flags.unknown and (flags.by or flags.depth):
        refused = "--by" if flags.by else "--depth"
        raise UsageError(f"--unknown: takes no {refused}", hint="it lists single allocations")


def _print_cards(run: Run, as_json: bool) -> bool:
    """Print the GPUs of a run in which nothing but GPUs was read; return whether it is one."""
    from gpuledger.analyze.view.watched_card import card_figures

    figures = card_figures(run)
    if not figures:
        return False
    from gpuledger.analyze.compare.compare import compare
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.compare_table import comparison_document
    from gpuledger.report.text.watched_text import watched_lines

    if as_json:
        print_json(comparison_document(compare([run])))
    else:
        print_lines(watched_lines(run, figures, Terminal.of(sys.stdout)))
    return True


def _print_unknown(view: RunView, tables: TableOptions, as_json: bool) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.show_text import show_unknown_lines
    from gpuledger.report.text.unknown_text import unknown_document

    if as_json:
        print_json(unknown_document([(device.rank.number, device.unknowns) for device in view.devices]))
    else:
        print_lines(show_unknown_lines(view, tables, Terminal.of(sys.stdout)))


def _print_view(view: RunView, tables: TableOptions, path: str, as_json: bool) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.json.document import show_document
    from gpuledger.report.text.show_text import closing_lines, show_lines

    if as_json:
        print_json(show_document(view))
        return
    print_lines(show_lines(view, tables, Terminal.of(sys.stdout)))
    print_notes(closing_lines(view, path, Terminal.of(sys.stderr)))
