"""What one report shows, gathered from a run's analyses and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.account_series import AccountSeries, build_account_series, choose_instants, keep_instants
from gpuledger.analyze.memory.breakdown import Account, break_down
from gpuledger.analyze.memory.live import device_indices
from gpuledger.analyze.memory.timeline import Band, Timeline, bands, build_timeline
from gpuledger.analyze.overview.balance import Balance, build_balance
from gpuledger.analyze.overview.findings import Finding, find_findings
from gpuledger.analyze.overview.summary import Summary, summarize
from gpuledger.analyze.samples.series import Line, read_lines
from gpuledger.analyze.step.energy import EnergyBreakdown, break_down_energy
from gpuledger.analyze.step.own_cost import OwnCost, own_cost
from gpuledger.analyze.step.rates import Rates, find_rates
from gpuledger.analyze.step.step_parts import StepParts, step_parts
from gpuledger.analyze.step.times import TimeBreakdown, break_down_time
from gpuledger.errors import EmptyRunError
from gpuledger.model.accounts import ROUNDING
from gpuledger.report.base.columns import read_windows
from gpuledger.report.html.card_view import CardView, gather_cards
from gpuledger.report.html.tree import Module

if TYPE_CHECKING:
    from gpuledger.analyze.memory.instant import Instant
    from gpuledger.model.manifest import RankManifest, RunManifest
    from gpuledger.model.run import Rank, Run

POINTS, POINTS_OF_FILE, FEWEST_POINTS = 4_000, 24_000, 400
INSTANTS, INSTANTS_OF_FILE, FEWEST_INSTANTS = 96, 384, 12
RUNS_OF_FILE = 180_000
"""Runs of equal account bytes in one file; a wide model gets fewer instants, so that the file stays small."""
MAX_TENSORS = 200
MAX_BANDS = 4000


@dataclass(frozen=True)
class View:
    """One device of one rank. ``tensors`` are the largest at the peak, ``tensors_left_out`` those below them."""

    rank: int
    device_idx: int
    manifest: RankManifest
    summary: Summary
    timeline: Timeline
    bands: tuple[Band, ...]
    modules: tuple[Module, ...]
    accounts: AccountSeries
    tensors: tuple[Account, ...]
    tensors_left_out: int
    balance: Balance
    findings: tuple[Finding, ...]
    windows: tuple[dict[str, Any], ...]
    times: TimeBreakdown | None = None
    parts: StepParts | None = None
    energy: EnergyBreakdown | None = None
    rates: Rates | None = None
    cost: OwnCost | None = None
    power: Line | None = None


@dataclass(frozen=True)
class ReportData:
    """A run as a report shows it: its name, its manifest, and one view per rank and device.

    ``cards`` are those of a run without any block, whose cards were only watched.
    """

    name: str
    manifest: RunManifest
    views: tuple[View, ...]
    cards: tuple[CardView, ...] = ()


def gather(run: Run, ranks: tuple[Rank, ...]) -> ReportData:
    """Return what a report on ``ranks`` shows; the more views, the coarser each one's timeline.

    Raises:
        EmptyRunError: no rank has a block or a reading of a card's bytes.
        InputError: a part of the run is damaged.
    """
    places = [(rank, device_idx) for rank in ranks for device_idx in device_indices(rank)]
    cards = gather_cards(run, ranks) if not places else ()
    if not places and not cards:
        raise EmptyRunError(
            f"{run.path.name}: no allocation was recorded and no card was read, there is nothing to report",
            hint="gpuledger doctor says what can be recorded here",
        )
    power = {(line.rank, line.device_idx): line for line in read_lines([run], "power")[0]}
    views = []
    for rank in ranks:
        fresh = replace(rank)  # keeps its own columns, so that they go when the next rank's come
        for device_idx in [device for place, device in places if place is rank]:
            view = _view(fresh, device_idx, len(places))
            views.append(replace(view, power=power.get((rank.number, device_idx))))
    return ReportData(run.name, run.manifest, tuple(views), cards)


def share_of(total: int, views: int, most: int, fewest: int) -> int:
    """Return what one of ``views`` may take of ``total``."""
    return max(fewest, min(most, total // views))


def _view(rank: Rank, device_idx: int, views: int) -> View:
    timeline = build_timeline(rank, device_idx, share_of(POINTS_OF_FILE, views, POINTS, FEWEST_POINTS))
    summary = summarize(rank, device_idx)
    tensors = _tensors(rank, summary)
    return View(
        rank=rank.number,
        device_idx=device_idx,
        manifest=rank.manifest,
        summary=summary,
        timeline=timeline,
        bands=_bands(rank, device_idx, timeline),
        modules=_modules(rank),
        accounts=_accounts(rank, timeline, summary.instant, views),
        tensors=tuple(tensors[:MAX_TENSORS]),
        tensors_left_out=max(0, len(tensors) - MAX_TENSORS),
        balance=build_balance(rank, device_idx),
        findings=find_findings(rank, device_idx),
        windows=read_windows(rank, device_idx),
        times=break_down_time(rank, device_idx),
        parts=step_parts(rank, device_idx),
        energy=break_down_energy(rank, device_idx),
        rates=find_rates(rank, device_idx),
        cost=own_cost(rank, device_idx),
    )


def _accounts(rank: Rank, timeline: Timeline, peak: Instant, views: int) -> AccountSeries:
    """Return the accounts at as many instants as the file has room for."""
    count = share_of(INSTANTS_OF_FILE, views, INSTANTS, FEWEST_INSTANTS)
    room = RUNS_OF_FILE // views
    instants = choose_instants(rank, timeline, peak, count)
    series = build_account_series(rank, timeline.device_idx, instants)
    while series.bytes.size > room and len(instants) > FEWEST_INSTANTS:
        instants = instants[: max(FEWEST_INSTANTS, len(instants) * 3 // 4)]
        series = keep_instants(series, instants)
    return series


def _tensors(rank: Rank, summary: Summary) -> list[Account]:
    books = break_down(rank, summary.instant, by=("category", "module", "tensor"))
    return [account for account in books.accounts if account.category != ROUNDING]


def _bands(rank: Rank, device_idx: int, timeline: Timeline) -> tuple[Band, ...]:
    """Return the steps, and the phases that touch the timeline, the first :data:`MAX_BANDS` of them."""
    start_ns, end_ns = int(timeline.t_ns[0]), int(timeline.t_ns[-1])
    shown = [
        band
        for band in bands(rank, device_idx)
        if band.end_ns >= start_ns and (band.kind == "step" or band.start_ns <= end_ns)
    ]
    return tuple(shown[:MAX_BANDS])


def _modules(rank: Rank) -> tuple[Module, ...]:
    table = rank.table("modules", ("module_id", "parent_id", "path", "class_name"))
    columns = (table[name].to_pylist() for name in table.column_names)
    return tuple(Module(*row) for row in zip(*columns, strict=True))
