"""Estimates of sharded training in words and as tables."""

from __future__ import annotations

from gpuledger.cli.predict.estimate_text import breakdown_table, interval, steps_text
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
