"""``gpuledger show``: where the bytes are at one instant."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

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
)
from gpuledger.errors import UsageError

if TYPE_CHECKING:
    from gpuledger.analyze.memory.breakdown import Breakdown
    from gpuledger.analyze.step.side_by_side import Line
    from gpuledger.model.run import Rank, Run
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.json.document import View

WORDS = {
    "category": ("category", "module"),
    "module": ("category", "module"),
    "phase": ("category", "module", "phase"),
    "scope": ("category", "module", "scope"),
    "tensor": ("category", "module", "tensor"),
    "operator": ("category", "module"),
    "kernel": ("category", "module"),
}
"""What each ``--by`` tells apart; the accounts of ``--json`` always hold category and module."""
BYTES_ALONE = ("category", "tensor")
"""What the allocator tells apart and no kernel or operator has."""
SORTS = ("bytes", "time", "energy", "forward", "backward")
ROWS, ROWS_OF_TWO = 20, 10


@click.command(
    "show",
    short_help="Show where the bytes are at one instant.",
    epilog="""\b
Examples:
  gpuledger show train.ledger --by module --depth 2
  gpuledger show train.ledger --by module --sort energy --fold""",
)
@run_argument()
@click.option("--by", type=click.Choice(list(WORDS)), help="One table by this. Without it: categories, then modules.")
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
def show_command(
    run_path: str,
    by: str | None,
    at: str,
    step: int | None,
    rows: int | None,
    depth: int | None,
    sort: str | None,
    fold: bool,
    per_sample: bool,
    unknown: bool,
    rank_text: str | None,
    device_idx: int | None,
    as_json: bool,
) -> None:
    """Show where the bytes are at one instant, and where a step's time and energy go.

    RUN is a directory NAME.ledger. The rows always sum to the total: what is not shown is summed in one row, and
    `rounding` is what the allocator gave beyond what was asked for. Several ranks or devices stand side by side; with
    --by the table below is of the one whose peak is highest.
    """
    if by in BYTES_ALONE and (sort not in (None, "bytes") or fold or per_sample):
        refused = f"--sort {sort}" if sort not in (None, "bytes") else "--fold" if fold else "--per-sample"
        raise UsageError(f"--by {by}: takes no {refused}", hint="it lists bytes alone")
    if unknown and (by or depth):
        raise UsageError(f"--unknown: takes no {'--by' if by else '--depth'}", hint="it lists single allocations")
    run = open_run(run_path)
    if _show_watched(run, as_json):
        return
    places = choose_devices(choose_ranks(run, rank_text), device_idx)
    if unknown:
        _show_unknown(places, at, step, rows or ROWS, as_json)
        return
    asked = Asked(by, rows, depth, sort, fold, per_sample)
    views = _views(places, at, step, asked)
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.json.document import show_document

    if as_json:
        print_json(show_document(views, WORDS[by or "category"]))
        return
    print_lines(_lines(views, [rank for rank, _ in places], asked, Terminal.of(sys.stdout)))
    print_notes(_closing_lines(views, quoted(run_path), by, Terminal.of(sys.stderr)))


def _show_watched(run: Run, as_json: bool) -> bool:
    """Show the cards of a run in which nothing but cards was read; return whether it is one."""
    from gpuledger.analyze.samples.watched import watched

    of_cards = all(rank.manifest.recorder.has_only_card_readings for rank in run.ranks)
    figures = watched(run) if of_cards else ()
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


def _show_unknown(places: list[tuple[Rank, int]], at: str, step: int | None, rows: int, as_json: bool) -> None:
    from gpuledger.analyze.memory.instant import resolve_instant
    from gpuledger.analyze.memory.unknown import list_unknown
    from gpuledger.report.base.terminal import Terminal
    from gpuledger.report.text.unknown_text import unknown_document, unknown_lines

    found = [(rank.number, list_unknown(rank, resolve_instant(rank, at, device, step))) for rank, device in places]
    if as_json:
        print_json(unknown_document(found))
        return
    terminal = Terminal.of(sys.stdout)
    for position, (_, unknowns) in enumerate(found):
        print_lines([*([""] if position else []), *unknown_lines(unknowns, rows, terminal)])


def _views(places: list[tuple[Rank, int]], at: str, step: int | None, asked: Asked) -> list[View]:
    from gpuledger.analyze.memory.breakdown import break_down
    from gpuledger.analyze.memory.instant import resolve_instant
    from gpuledger.analyze.overview.summary import summarize
    from gpuledger.analyze.step.energy import break_down_energy
    from gpuledger.analyze.step.own_cost import own_cost
    from gpuledger.analyze.step.rates import find_rates
    from gpuledger.analyze.step.times import break_down_time
    from gpuledger.report.json.document import View

    views = []
    for rank, device in places:
        books = break_down(rank, resolve_instant(rank, at, device, step), WORDS[asked.by or "category"], asked.depth)
        passes = break_down_time(rank, device), break_down_energy(rank, device)
        lines = _lines_by(rank, books, asked.by, asked) if asked.by else ()
        views.append(
            View(summarize(rank, device), books, *passes, find_rates(rank, device), own_cost(rank, device), lines)
        )
    return views


def _lines_by(rank: Rank, books: Breakdown, word: str, asked: Asked) -> tuple[Line, ...]:
    """Return bytes, times and joules by one word; empty for tensors.

    Raises:
        UsageError: the word tells nothing apart in a run without a time pass.
    """
    from gpuledger.analyze.step.side_by_side import lines_by

    lines = lines_by(rank, books, word, depth=asked.depth, sort=asked.sort, fold=asked.fold)
    if not lines and word != "tensor":
        raise UsageError(f"--by {word}: the run has no time pass", hint="gpuledger run --passes memory,energy,time")
    return lines


@dataclass(frozen=True)
class Asked:
    """How one device is to be shown."""

    by: str | None
    rows: int | None
    depth: int | None
    sort: str | None
    fold: bool
    per_sample: bool


def _one_view(view: View, rank: Rank, asked: Asked, terminal: Terminal) -> list[str]:
    from gpuledger.report.base.phrases import head_lines
    from gpuledger.report.text.ledger_table import OF_A_STEP, ledger_table, units_of_samples
    from gpuledger.report.text.tables import group_table, tensor_table

    lines = head_lines(view, terminal)
    units = OF_A_STEP
    if asked.per_sample:
        step_ns = view.times.work_ns if view.times else 0.0
        units = units_of_samples(_batch_of(view), step_ns, view.energy.step_energy_j if view.energy else 0.0)
    if asked.by == "tensor":
        return [*lines, "", *tensor_table(view.breakdown, asked.rows or ROWS).lines(terminal)]
    for word in (asked.by,) if asked.by else ("category", "module"):
        count = asked.rows or (ROWS if asked.by else ROWS_OF_TWO)
        ledger = view.lines or _lines_by(rank, view.breakdown, word, asked)
        bytes_alone = all(line.time_ns is None and line.energy_j is None for line in ledger)
        table = group_table(view.breakdown, word, count) if bytes_alone and not asked.fold else None
        lines += ["", *(table or ledger_table(ledger, word, count, units)).lines(terminal)]
    return lines


def _batch_of(view: View) -> int:
    """Return how many samples a step works through.

    Raises:
        UsageError: it is not known, or steps of several kinds are among those that were measured.
    """
    rates = view.rates
    if rates is None or not rates.batch:
        raise UsageError("--per-sample: no module was called with a tensor", hint="times and joules are of a step")
    if len(rates.kinds) > 1:
        raise UsageError("--per-sample: prefill and decode differ in their tokens", hint="`show` tells tokens of both")
    return rates.batch


def _side_by_side(views: list[View], terminal: Terminal) -> list[str]:
    from gpuledger.analyze.overview.ranks import find_imbalance
    from gpuledger.report.text.tables import imbalance_line, rank_table

    lines = rank_table(views).lines(terminal)
    imbalance = find_imbalance([view.summary for view in views])
    return lines if imbalance is None else [*lines, "", *terminal.paragraph(imbalance_line(imbalance))]


def _lines(views: list[View], ranks: list[Rank], asked: Asked, terminal: Terminal) -> list[str]:
    """Return the only view; of several their ranks and, where one word was asked for, the one with the highest peak."""
    from gpuledger.report.base.phrases import device_label

    if len(views) == 1:
        return _one_view(views[0], ranks[0], asked, terminal)
    lines = _side_by_side(views, terminal)
    if asked.by is None:
        return lines
    view, rank = max(zip(views, ranks, strict=True), key=lambda one: one[0].summary.peak_allocated_bytes)
    where = f"rank {view.summary.rank} · {device_label(view.summary.device_idx)}, whose peak is highest"
    return [*lines, "", where, *_one_view(view, rank, asked, terminal)]


def _closing_lines(views: list[View], path: str, by: str | None, terminal: Terminal) -> list[str]:
    """Return the notes of every view, once each, and the commands to try next."""
    from gpuledger.report.text.text import next_lines

    notes = dict.fromkeys(note for view in views for note in view.summary.notes)
    lines = [line for note in notes for line in terminal.paragraph(note, "note   ", 7)]
    if len(views) > 1:
        highest = max(views, key=lambda view: view.summary.peak_allocated_bytes).summary
        one = f"--rank {highest.rank} --device {highest.device_idx}"
        commands = [f"gpuledger show {path} {one}", f"gpuledger balance {path} {one}"]
    elif by == "module":
        commands = [f"gpuledger show {path} --by tensor", f"gpuledger balance {path}"]
    else:
        commands = [f"gpuledger show {path} --by module -n 50", f"gpuledger report {path} --open"]
    return ["", *lines, *next_lines(commands, terminal)]
