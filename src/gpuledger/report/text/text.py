"""The short form of a run, printed when a recording ends."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from gpuledger.analyze.memory.empty import why_empty
from gpuledger.analyze.memory.groups import group_accounts, label_of
from gpuledger.analyze.view.view import build_view, highest_devices
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.base.phrases import device_label, head_lines, labelled, percent
from gpuledger.report.base.terminal import Terminal
from gpuledger.report.text.tables import imbalance_line
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.analyze.memory.breakdown import Account, Breakdown
    from gpuledger.analyze.memory.oom import OutOfMemory
    from gpuledger.model.run import Rank, Run

TOP = 5


def print_run_summary(run: Run, stream: TextIO) -> None:
    """Print what a finished recording holds, in a few lines, with the next command to try."""
    for line in run_summary_lines(run, Terminal.of(stream)):
        stream.write(line + "\n")
    stream.flush()


def run_summary_lines(run: Run, terminal: Terminal) -> list[str]:
    """Return the lines of the short form.

    Of several ranks the one whose peak is highest speaks, and a line names the imbalance.
    """
    view = build_view(run, devices=highest_devices(run.ranks))
    lines: list[str] = []
    if view.devices:
        lines += [*head_lines(view.highest, terminal), *_holder_lines("most", view.highest.breakdown, terminal)]
        if view.imbalance:
            lines += labelled(terminal, "ranks", [imbalance_line(view.imbalance)])
    else:
        lines += labelled(terminal, "empty", [why_empty(run.ranks)])
    for rank, failure in view.out_of_memory:
        lines += _oom_lines(rank, failure, terminal)
    for note in view.closing_notes:
        lines += terminal.paragraph(note, "note   ", 7)
    return [*lines, *(_next_lines(run, terminal) if view.devices else [])]


def _holder_lines(label: str, breakdown: Breakdown, terminal: Terminal) -> list[str]:
    """Return the largest categories, and below them the largest accounts."""
    total = breakdown.allocated_bytes
    categories = [f"{g.label} {percent(g.bytes, total)}" for g in group_accounts(breakdown.accounts, "category")[:TOP]]
    accounts = [_account_phrase(account) for account in breakdown.accounts if account.category != ROUNDING][:TOP]
    return [*labelled(terminal, label, categories), *labelled(terminal, "", accounts)]


def _account_phrase(account: Account) -> str:
    return f"{label_of(account, 'module')}: {account.category} {format_bytes(account.bytes)}"


def _oom_lines(rank: Rank, failure: OutOfMemory, terminal: Terminal) -> list[str]:
    device = device_label(failure.device_idx)
    tried = "an allocation" if failure.tried_bytes is None else format_bytes(failure.tried_bytes)
    parts = [f"{tried} did not fit on {device}" + (f" of rank {rank.number}" if rank.number else "")]
    if failure.free_bytes is not None:
        of_total = f" of {format_bytes(failure.total_bytes)}" if failure.total_bytes else ""
        parts.append(f"free on the GPU: {format_bytes(failure.free_bytes)}{of_total}")
    if failure.largest_free_bytes is not None:
        parts.append(f"largest free block: {format_bytes(failure.largest_free_bytes)}")
    lines = labelled(terminal, "memory", parts)
    if failure.holders is None:
        return lines
    modules = [g for g in group_accounts(failure.holders.accounts, "module") if not g.label.startswith("(rounding")]
    held = [f"{g.label} {format_bytes(g.bytes)}" for g in group_accounts(failure.holders.accounts, "category")[:TOP]]
    by_module = [f"{g.label} {format_bytes(g.bytes)}" for g in modules[:TOP]]
    return [*lines, *labelled(terminal, "held", held), *labelled(terminal, "by", by_module)]


def _next_lines(run: Run, terminal: Terminal) -> list[str]:
    here = Path.cwd()
    path = shlex.quote(str(run.path.relative_to(here) if run.path.is_relative_to(here) else run.path))
    commands = [f"gpuledger show {path} --by module", f"gpuledger report {path} --open"]
    return next_lines(commands, terminal)


def next_lines(commands: list[str], terminal: Terminal) -> list[str]:
    """Return the commands to try next; never shortened, so that they can be copied."""
    return terminal.wrapped(["next   " + terminal.text(commands[0]), *map(terminal.text, commands[1:])], 7)
