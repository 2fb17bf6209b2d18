"""Estimates of sharded training as tables and as documents."""

from __future__ import annotations

from typing import Any

from gpuledger.cli.predict.estimate_text import breakdown_table, interval, peaks_document, steps_text
from gpuledger.report.base.terminal import BOLD, Terminal, TextColumn, TextTable
from gpuledger.simulate.catalogue import GpuModel
from gpuledger.simulate.estimate.ranks import RankEstimate, RanksEstimate
from gpuledger.simulate.estimate.world_search import WorldSearch
from gpuledger.units import counted, format_bytes

_GIB = 1 << 30


def ranks_lines(found: RanksEstimate, terminal: Terminal, rows: int) -> list[str]:
    """Return the verdict, a table of the simulated ranks, and the memory at the peak of the highest one."""
    highest = found.highest
    estimate = highest.estimate
    sizes = f"{estimate.peak_process_bytes / _GIB:.1f} of {estimate.card.usable_bytes / _GIB:.1f} GiB at the peak"
    cards = f"{found.world_size} × {estimate.card.key}"
    first = f"{found.verdict} on {cards} ({sizes} of rank {highest.rank}, {interval(estimate)})"
    communicators = counted(highest.communicators, "communicator")
    own_bytes = estimate.card.outside_bytes - found.nccl_bytes
    second = (
        f"{counted(len(found.ranks), 'rank')} simulated   context and libraries {format_bytes(own_bytes)}   "
        f"NCCL {format_bytes(found.nccl_bytes)} ({communicators})   {steps_text(estimate)}"
    )
    lines = [terminal.styled(terminal.text(first), BOLD), terminal.text(second), ""]
    lines += [*_rank_table(found).lines(terminal), "", f"rank {highest.rank} at its peak:"]
    for word in ("category", "module"):
        lines += [*breakdown_table(estimate, word, rows).lines(terminal), ""]
    return lines[:-1]


def _rank_table(found: RanksEstimate) -> TextTable:
    names = list(dict.fromkeys(name for one in found.ranks for name in one.coordinate))
    numbers = ("allocated", "reserved", "process", "upper bound")
    columns = (
        TextColumn("rank", right=True),
        *(TextColumn(name, right=True) for name in names),
        *(TextColumn(name, right=True) for name in numbers),
        TextColumn("verdict"),
    )
    return TextTable(columns, tuple(_rank_row(one, names) for one in found.ranks))


def _rank_row(one: RankEstimate, names: list[str]) -> tuple[str, ...]:
    estimate = one.estimate
    sizes = (
        estimate.peak_allocated_bytes,
        estimate.peak_reserved_bytes,
        estimate.peak_process_bytes,
        estimate.upper_bytes,
    )
    place = [str(one.coordinate.get(name, "")) for name in names]
    return (str(one.rank), *place, *map(format_bytes, sizes), estimate.fit.verdict)


def ranks_document(found: RanksEstimate) -> dict[str, Any]:
    """Return the estimates of all simulated ranks as one JSON document."""
    return {
        "gpu": found.highest.estimate.card.key,
        "world_size": found.world_size,
        "verdict": found.verdict,
        "fits": found.fits,
        "highest_rank": found.highest.rank,
        "nccl_bytes": found.nccl_bytes,
        "capacity_bytes": found.highest.estimate.card.usable_bytes,
        "confidence": found.highest.estimate.confidence,
        "ranks": [
            {
                "rank": one.rank,
                "coordinate": one.coordinate,
                "communicators": one.communicators,
                "nccl_bytes": one.nccl_bytes,
                **peaks_document(one.estimate, one.rank),
            }
            for one in found.ranks
        ],
        "notes": list(found.notes),
        "run": str(found.run.path),
    }


def world_lines(found: WorldSearch, card: GpuModel, terminal: Terminal) -> list[str]:
    """Return the smallest number of ranks that fits, and what was tried."""
    first = f"smallest world size on {card.key}: {found.smallest}" if found.smallest else f"{card.key}: {found.why}"
    rows = tuple(
        (
            str(trial.world_size),
            "" if trial.process_bytes is None else format_bytes(trial.process_bytes),
            trial.verdict,
            trial.why,
        )
        for trial in found.trials
    )
    columns = (
        TextColumn("ranks", right=True),
        TextColumn("peak", right=True),
        TextColumn("verdict"),
        TextColumn("why", shrinks=True),
    )
    return [terminal.styled(terminal.text(first), BOLD), "", *TextTable(columns, rows).lines(terminal)]


def world_document(found: WorldSearch, card: GpuModel) -> dict[str, Any]:
    """Return a search as one JSON document."""
    return {
        "gpu": card.key,
        "smallest": found.smallest,
        "why": found.why or None,
        "trials": [
            {
                "world_size": trial.world_size,
                "verdict": trial.verdict,
                "peak_process_bytes": trial.process_bytes,
                "why": trial.why or None,
            }
            for trial in found.trials
        ],
    }
