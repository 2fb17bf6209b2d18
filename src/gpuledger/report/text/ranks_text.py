"""All ranks together in a terminal: what differs first, then tables by category, outlier and time."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from gpuledger.analyze.memory.tree import OUTSIDE_PATH
from gpuledger.analyze.overview.ranks import LEAST_BYTES, differs
from gpuledger.analyze.ranks.rank_set import Outlier, RankSet
from gpuledger.analyze.ranks.spreads import RankSpread
from gpuledger.report.base.phrases import MISSING_OR_FAILED, column_unit, entry, percent
from gpuledger.report.base.terminal import TextColumn, TextTable
from gpuledger.units import counted, format_bytes, format_joules, format_ns, name_ranks

if TYPE_CHECKING:
    from gpuledger.analyze.ranks.waits import RankTime
    from gpuledger.report.base.terminal import Terminal

CELLS = 20
"""Column of the texts after the labels, as in the first screen."""
MOST_OUTLIERS, MOST_TIMES, MOST_ENERGIES, MOST_DEVICES = 8, 8, 8, 3


def rank_set_lines(ranks: RankSet, terminal: Terminal) -> list[str]:
    """Return the merged view of all ranks. What differs between ranks comes first."""
    lines: list[str] = []
    for label, texts in rank_set_entries(ranks):
        lines += entry(terminal, label, *texts, cells=CELLS)
    lines += ["", *_category_table(ranks.categories).lines(terminal)]
    if ranks.outliers:
        lines += ["", *_outlier_table(ranks.outliers).lines(terminal)]
    if ranks.waits is not None:
        lines += ["", *_time_table(ranks.waits.ranks).lines(terminal)]
    return lines


def rank_set_entries(ranks: RankSet) -> list[tuple[str, tuple[str, ...]]]:
    """Return label and texts of what is said about all ranks, what differs between them first."""
    found = [(MISSING_OR_FAILED, ranks.problems), ("Waiting", _waiting(ranks)), ("Highest peak", _highest(ranks))]
    whole = [f"{one.module} is whole on every rank: {format_bytes(one.bytes)} each" for one in ranks.whole_weights]
    whole += [
        f"{what} of {one.module} {verb} whole on every rank: {format_bytes(one.bytes)} each"
        for what, verb, found in (
            ("optimizer state", "is", ranks.whole_states),
            ("gradients", "are", ranks.whole_gradients),
        )
        for one in found
    ]
    found.append(("Not sharded", tuple(whole)))
    found.append(("Energy", _energy(ranks)))
    devices = ", ".join(f"{count} × {name}" for name, count in ranks.devices[:MOST_DEVICES])
    count = counted(len({line.rank for line in ranks.lines}), "rank")
    count += "" if _are_all(ranks) else f" ({len(ranks.job)} at a time)"
    on_cpu = all(line.device_idx < 0 for line in ranks.lines)
    found.append(("Ranks", (f"{count}, CPU tensors" if on_cpu else f"{count} on {devices}",)))
    return [(label, texts) for label, texts in found if texts]


def _are_all(ranks: RankSet) -> bool:
    """Return whether the ranks with a line are those of one job, without a restart."""
    return {line.rank for line in ranks.lines} == set(ranks.job)


def _highest(ranks: RankSet) -> tuple[str, ...]:
    highest, middle = ranks.highest, ranks.median_peak_bytes
    place = f" ({highest.coordinate})" if highest.coordinate else ""
    where = f" in {highest.peak_phase}" if highest.peak_phase else ""
    where += f" of {highest.peak_module}" if highest.peak_module else ""
    size = format_bytes(highest.recorded_peak_allocated_bytes)
    texts = [f"{size} on rank {highest.rank}{place}{where}, step {highest.peak_step}; median {format_bytes(middle)}"]
    least = max(LEAST_BYTES, middle // 200)
    reasons = [one for one in ranks.why_highest if one.excess_bytes >= least]
    if reasons and differs(highest.recorded_peak_allocated_bytes, ranks.comparable_peak_bytes):
        texts.append("more than on comparable ranks: " + ", ".join(_excess(one) for one in reasons))
    return tuple(texts)


def _excess(one: Outlier) -> str:
    return f"{one.category} of {one.module or OUTSIDE_PATH} +{format_bytes(one.excess_bytes)}"


def _waiting(ranks: RankSet) -> tuple[str, ...]:
    if ranks.waits is None or ranks.waits.straggler is None:
        return ()
    one, steps = ranks.waits.straggler, [line.step_time_ns for line in ranks.lines if line.step_time_ns]
    of_step = f" ({percent(one.caused_wait_ns, max(steps))} of a step)" if steps else ""
    return (
        f"the other ranks wait {format_ns(one.caused_wait_ns)}{of_step} for rank {one.rank}, which causes "
        f"{percent(one.caused_wait_frac, 1)} of the waiting and comes last to {percent(one.came_last_frac, 1)} of "
        f"{ranks.waits.collectives} collectives",
    )


def _energy(ranks: RankSet) -> tuple[str, ...]:
    """Return the energy of a step on all ranks, and on each of a few ranks or the least and the most of many."""
    known: dict[int, float] = {}
    for line in ranks.lines:
        if line.step_energy_j is not None:
            known[line.rank] = known.get(line.rank, 0.0) + line.step_energy_j
    if not known:
        return ()
    if ranks.energy_j is None:
        total = f"known on {len(known.keys() & set(ranks.job))} of {counted(len(ranks.job), 'rank')}"
    else:
        on = "all ranks" if _are_all(ranks) else name_ranks(ranks.job)
        total = f"{format_joules(ranks.energy_j)} per step on {on}"
    if len(known) <= MOST_ENERGIES:
        return total, ", ".join(f"{format_joules(energy_j)} on rank {rank}" for rank, energy_j in known.items())
    least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    ends = f"{format_joules(known[least])} on rank {least} to {format_joules(known[most])} on rank {most}"
    return total, f"{ends}; median {format_joules(median(known.values()))}"


def _category_table(spreads: tuple[RankSpread, ...]) -> TextTable:
    unit = column_unit(max((one.max_bytes for one in spreads), default=0))
    columns = (
        TextColumn("category"),
        TextColumn(f"min {unit.name}", right=True, optional=2),
        TextColumn(f"median {unit.name}", right=True),
        TextColumn(f"max {unit.name}", right=True, optional=1),
        TextColumn("on rank", right=True, optional=3),
        TextColumn("expected", right=True, optional=4),
    )
    rows = tuple(
        (
            one.name,
            *(unit.amount(size) for size in (one.min_bytes, one.median_bytes, one.max_bytes)),
            str(one.max_rank) if one.max_bytes > one.min_bytes else "",
            "" if one.expected_bytes is None else format_bytes(one.expected_bytes),
        )
        for one in spreads
    )
    return TextTable(columns, rows)


def _outlier_table(outliers: tuple[Outlier, ...]) -> TextTable:
    columns = (
        TextColumn("rank", right=True),
        TextColumn("category", optional=2),
        TextColumn("module"),
        TextColumn("at the peak", right=True),
        TextColumn("median", right=True, optional=1),
    )
    rows = tuple(
        (
            str(one.rank),
            one.category,
            one.module or OUTSIDE_PATH,
            format_bytes(one.bytes),
            format_bytes(one.median_bytes),
        )
        for one in outliers[:MOST_OUTLIERS]
    )
    return TextTable(columns, rows)


def _time_table(times: tuple[RankTime, ...]) -> TextTable:
    titles = ("compute", "communication", "overlapped", "waiting", "others wait for it")
    columns = (
        TextColumn("rank", right=True),
        *(TextColumn(title, right=True, optional=len(titles) - place) for place, title in enumerate(titles)),
    )
    chosen = sorted(times, key=lambda one: -one.caused_wait_ns)[:MOST_TIMES]
    rows = tuple(
        (
            str(one.rank),
            format_ns(one.compute_ns),
            format_ns(one.exposed_communication_ns),
            format_ns(one.overlapped_communication_ns),
            format_ns(one.waiting_ns),
            format_ns(one.caused_wait_ns),
        )
        for one in chosen
    )
    return TextTable(columns, rows)
