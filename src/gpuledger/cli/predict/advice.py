"""``gpuledger estimate --fit``: the cheapest changes with which a program fits, as text and JSON."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from gpuledger.cli.common import print_json, print_lines, print_notes
from gpuledger.errors import BudgetExceededError
from gpuledger.report.base.terminal import BOLD, Terminal, TextColumn, TextTable
from gpuledger.units import format_bytes

if TYPE_CHECKING:
    from gpuledger.simulate.advice.advise import Advice
    from gpuledger.simulate.advice.choose import Tried
    from gpuledger.simulate.estimate.run import Order

_NAMES = {
    "checkpoint": "checkpointed blocks",
    "autocast": "autocast",
    "expandable": "expandable segments",
    "fused": "fused optimizer",
    "8-bit": "8-bit optimizer",
    "accumulated": "accumulated batches",
    "smaller": "smaller batches",
}
"""Names of changes in a table."""


def advise_on(order: Order, flags: dict[str, Any]) -> None:
    """Print the cheapest changes with which a program fits.

    Raises:
        BudgetExceededError: there are none, and ``--require-fit`` is given.
    """
    from gpuledger.report.text.run_summary import note_lines
    from gpuledger.simulate.advice.advise import advise_program

    output = None if flags["quiet"] else sys.stderr
    found = advise_program(order, flags["fit_bytes"], flags["batch_argument"] or "", output)
    if flags["as_json"]:
        print_json(advice_document(found))
    else:
        print_lines(advice_lines(found, Terminal.of(sys.stdout)))
        print_notes(["", *note_lines((*found.unavailable, *found.notes), Terminal.of(sys.stderr))])
    if flags["require_fit"] and found.best is None:
        raise BudgetExceededError(
            f"no combination fits {format_bytes(found.limit_bytes)}", hint="Use a smaller model or a larger GPU"
        )


def advice_lines(found: Advice, terminal: Terminal) -> list[str]:
    """Return what to change, and the combinations tried with their memory and their time by FLOPs."""
    rows = tuple(
        (
            name_of(one),
            format_bytes(one.process_bytes),
            format_bytes(one.upper_bytes),
            time_text(one.time_ratio),
            "yes" if one.fits else "no",
        )
        for one in _shown(found)
    )
    columns = (
        TextColumn("changes", shrinks=True),
        TextColumn("peak", right=True),
        TextColumn("upper bound", right=True),
        TextColumn("time by FLOPs", right=True),
        TextColumn("fits"),
    )
    return [
        terminal.styled(terminal.text(headline(found)), BOLD),
        *(terminal.text(f"  {sentence}") for sentence in found.changes),
        "",
        *TextTable(columns, rows).lines(terminal),
        "",
        *terminal.paragraph(
            "Times are computed by FLOPs, not measured: matrix products, convolutions and attention, per sample, at "
            "the GPU's peak rates, relative to the unchanged program."
        ),
    ]


def _shown(found: Advice) -> list[Tried]:
    """Return the combinations without those in which expandable segments save nothing."""
    plain = {one.combination: one.process_bytes for one in found.tried}
    return [
        one
        for one in found.tried
        if not one.combination.expandable
        or one.process_bytes < plain[dataclasses.replace(one.combination, expandable=False)]
    ]


def headline(found: Advice) -> str:
    """Return the answer in one line."""
    limit = f"{format_bytes(found.limit_bytes)} on {found.card.key}"
    unchanged = f"unchanged: at most {format_bytes(found.unchanged.upper_bytes)}"
    best = found.best
    if best is None:
        least_bytes = min(one.upper_bytes for one in found.tried)
        return f"no combination fits {limit} ({unchanged}; least of all: {format_bytes(least_bytes)})"
    if not found.changes:
        return f"fits {limit} without changes (at most {format_bytes(best.upper_bytes)})"
    time = time_text(best.time_ratio)
    return f"fits {limit} with these changes (at most {format_bytes(best.upper_bytes)}, {time} time; {unchanged})"


def time_text(ratio: float) -> str:
    """Return a change of time in percent: ``+33 %``, ``0 %``."""
    percent = round((ratio - 1) * 100)
    return f"{percent:+d} %" if percent else "0 %"


def name_of(one: Tried) -> str:
    """Return a combination's changes in a few words; batches with their size."""
    names = [_NAMES[name] for name in one.combination.names]
    if one.combination.parts:
        names[-1] += f" of {one.applied.batch // one.combination.divisor:,}"
    return ", ".join(names) or "none"


def advice_document(found: Advice) -> dict[str, Any]:
    """Return the advice as one JSON document."""
    return {
        "gpu": found.card.key,
        "limit_bytes": found.limit_bytes,
        "fits": found.best is not None,
        "changes": list(found.changes),
        "best": None if found.best is None else _document(found.best),
        "tried": [_document(one) for one in found.tried],
        "time_source": "by FLOPs, not measured",
        "unavailable": list(found.unavailable),
        "notes": list(found.notes),
    }


def _document(one: Tried) -> dict[str, Any]:
    parts = one.combination.parts
    return {
        "changes": list(one.combination.names),
        "batch": one.applied.batch // one.combination.divisor if parts else None,
        "accumulation_steps": one.combination.divisor if parts == "accumulated" else 1,
        "peak_process_bytes": one.process_bytes,
        "upper_bytes": one.upper_bytes,
        "time_ratio": round(one.time_ratio, 4),
        "fits": one.fits,
    }
