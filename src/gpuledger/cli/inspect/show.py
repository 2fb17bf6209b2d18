"""``gpuledger show``: where the bytes are at one instant."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from gpuledger.analyze.view.options import GROUPINGS, ViewOptions
from gpuledger.cli.common import (
    at_option,
    choose_devices,
    choose_ranks,
    depth_option,
    device_option,
    fit_option,
    gpus_for,
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
from gpuledger.errors import UsageError

if TYPE_CHECKING:
    from gpuledger.analyze.view.view import RunView
    from gpuledger.model.run import Run
    from gpuledger.report.text.show_text import TableOptions

BYTES_ALONE = ("category", "tensor")
"""Groupings of memory alone: kernels and operators have none of them."""
TIME_ALONE = "fusion"
"""Grouping with a table of its own, sorted by time."""
SORTS = ("bytes", "time", "energy", "forward", "backward", "evaluation")
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
    fit_bytes: int | None
    rank_text: str | None
    device_idx: int | None
    as_json: bool


@click.command(
    "show",
    epilog="""\b
Examples:
  gpuledger show train.ledger --by module --depth 2
  gpuledger show train.ledger --by module --sort energy --fold""",
)
@run_argument()
@click.option(
    "--by",
    type=click.Choice(list(GROUPINGS)),
    help="What to break the run down by.  [default: two tables, by category and by module]",
)
@at_option()
@step_option()
@rows_option(None, f" The last row sums the rest.  [default: {ROWS}, or {ROWS_OF_TWO} in each of two tables]")
@depth_option()
@click.option(
    "--sort",
    type=click.Choice(SORTS),
    help="Quantity to sort by, largest first.  [default: bytes, or time if there are none]",
)
@click.option("--fold", is_flag=True, help="Combine layers with paths that differ only in a number: layers.* (32).")
@click.option("--per-sample", is_flag=True, help="Divide time and energy by the batch size.")
@click.option("--unknown", is_flag=True, help="List memory without a module, name or scope, with its stack.")
@fit_option()
@rank_option()
@device_option()
@json_option()
@takes(ShowFlags)
def show_command(flags: ShowFlags) -> None:
    """Show memory, time and energy of a run by category or layer.

    Memory is shown at one moment, by default the peak; time and energy are those of one step. The rows sum to the
    total: rows that are not printed are summed in one row. The row `rounding` is memory that the allocator added to the
    requested sizes.

    RUN is a directory NAME.ledger or a file that `gpuledger import` can read. Several ranks or devices are listed in a
    table. With --by, a second table shows the one with the highest peak.
    """
    _refuse_mixed(flags)
    opened = open_each(flags.run_path)
    if len(opened) == 1:
        _show(flags, *opened[0])
    elif flags.as_json:
        print_json({"runs": {path: _document(flags, run) for path, run in opened}})
    else:
        for place, (path, run) in enumerate(opened):
            print_lines([*([""] if place else []), f"{run.name}   {path}"])
            _show(flags, path, run)


def _document(flags: ShowFlags, run: Run) -> Any:
    """Return what ``show --json`` prints of one run."""
    from gpuledger.analyze.step.time_logs import is_time_log, read_time_log
    from gpuledger.analyze.view.watched_card import card_figures
    from gpuledger.report.json.document import show_document
    from gpuledger.report.text.time_log_text import time_log_document
    from gpuledger.report.text.unknown_text import unknown_document

    if card_figures(run):
        from gpuledger.analyze.compare.compare import compare
        from gpuledger.report.text.compare_table import comparison_document

        return comparison_document(compare([run]))
    if is_time_log(run):
        return time_log_document(read_time_log(run))
    view = _view(flags, run)
    if flags.unknown:
        return unknown_document([(device.rank.number, device.unknowns) for device in view.devices])
    return show_document(view)


def _show(flags: ShowFlags, path: str, run: Run) -> None:
    """Print one run."""
    if flags.as_json:
        print_json(_document(flags, run))
    elif not (_print_cards(run) or _print_time_log(run) or _print_failures(run)):
        from gpuledger.report.text.show_text import TableOptions

        tables = TableOptions(flags.rows, flags.per_sample)
        (_print_unknown if flags.unknown else _print_view)(_view(flags, run), tables, quoted(path))


def _view(flags: ShowFlags, run: Run) -> RunView:
    from gpuledger.analyze.view.chosen_devices import MOST_VIEWS
    from gpuledger.analyze.view.view import build_view

    options = ViewOptions(
        flags.at,
        flags.step,
        flags.by,
        flags.depth,
        flags.sort,
        flags.fold,
        fit_bytes=flags.fit_bytes,
        gpus=gpus_for(run),
    )
    if flags.rank_text is None and flags.device_idx is None and len(run.ranks) > MOST_VIEWS:
        return build_view(run, options)
    ranks = choose_ranks(run, flags.rank_text)
    devices = choose_devices(ranks, flags.device_idx)
    return build_view(run, options, ranks=ranks if flags.device_idx is None else None, devices=devices)


def _refuse_mixed(flags: ShowFlags) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: some of them do not.
    """
    sorts = flags.sort not in (None, "bytes")
    if flags.by in BYTES_ALONE and (sorts or flags.fold or flags.per_sample):
        refused = f"--sort {flags.sort}" if sorts else "--fold" if flags.fold else "--per-sample"
        raise UsageError(
            f"--by {flags.by}: cannot be combined with {refused}",
            hint=f"Leave {refused} out: --by {flags.by} shows memory only",
        )
    if flags.by == TIME_ALONE and (flags.sort not in (None, "time") or flags.fold or flags.per_sample):
        refused = f"--sort {flags.sort}" if sorts else "--fold" if flags.fold else "--per-sample"
        raise UsageError(
            f"--by {flags.by}: cannot be combined with {refused}",
            hint=f"Leave {refused} out: --by {flags.by} shows one step, sorted by time",
        )
    if flags.unknown and (flags.by or flags.depth):
        refused = "--by" if flags.by else "--depth"
        raise UsageError(
            f"--unknown: cannot be combined with {refused}",
            hint=f"Leave {refused} out: --unknown lists single allocations",
        )


def _print_cards(run: Run) -> bool:
    """Print the GPUs of a run in which nothing but GPUs was read; return whether it is one."""
    if not run.has_only_card_readings:
        return False
    from gpuledger.analyze.view.watched_card import card_figures

    figures = card_figures(run)
    if not figures:
        return False
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.watched_text import watched_lines

    print_lines(watched_lines(run, figures, Terminal.of(sys.stdout)))
    return True


def _print_failures(run: Run) -> bool:
    """Print the out-of-memory errors of a run without a recorded block; return whether it has one."""
    from gpuledger.analyze.memory.lifetimes import device_indices
    from gpuledger.analyze.view.view import build_view
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.oom_text import failure_lines

    if not any(rank.manifest.oom for rank in run.ranks) or any(device_indices(rank) for rank in run.ranks):
        return False
    lines = failure_lines(build_view(run), Terminal.of(sys.stdout))
    print_lines(lines)
    return bool(lines)


def _print_time_log(run: Run) -> bool:
    """Print the times per layer of a run that holds nothing else; return whether it is one."""
    from gpuledger.analyze.step.time_logs import is_time_log, read_time_log

    if not is_time_log(run):
        return False
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.time_log_text import time_log_lines

    print_lines(time_log_lines([read_time_log(run)], Terminal.of(sys.stdout)))
    return True


def _print_unknown(view: RunView, tables: TableOptions, _path: str) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.show_text import show_unknown_lines

    print_lines(show_unknown_lines(view, tables, Terminal.of(sys.stdout)))


def _print_view(view: RunView, tables: TableOptions, path: str) -> None:
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.show_text import closing_lines, show_lines

    print_lines(show_lines(view, tables, Terminal.of(sys.stdout)))
    print_notes(closing_lines(view, path, Terminal.of(sys.stderr), tables.rows))
