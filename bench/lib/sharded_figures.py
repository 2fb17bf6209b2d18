"""Figures of recordings of sharded training: each rank against torch's counters, and waits against CUDA events."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.overview.balance import build_balance
from gpuledger.analyze.ranks.rank_set import build_rank_set
from gpuledger.model.run import Rank, Run
from gpuledger.report.text.ranks_text import rank_set_entries

Printed = dict[str, Any]
"""What one rank of the training wrote."""

MIB = 1 << 20
MOST_FRAC, MOST_OTHER_FRAC, WAIT_FRAC = 0.01, 0.01, 0.05
HARDLY_NS = 1e6
"""A rank that waits less than this in a step hardly waits."""
MOST_IN_WINDOW, MOST_AFTER_WINDOW = 1.03, 1.005


def rank_figures(rank: Rank, printed: Printed) -> dict[str, Any]:
    """Return what a rank's recording says beside what torch's counters said, and whether it is within the limits."""
    breakdown = break_down(rank, find_peak(rank), by=("category",))
    sizes = {one.category: one.bytes for one in breakdown.accounts}
    balance = build_balance(rank)
    lines = {line.name: line.bytes for line in balance.lines if line.level < 2}
    unaccounted, limit = balance.unaccounted_bytes, max(20 * MIB, round((balance.process_bytes or 0) * MOST_FRAC))
    other_frac = sizes.get("other", 0) / max(1, breakdown.allocated_bytes)
    return {
        "recorded_peak_allocated_bytes": breakdown.allocated_bytes,
        "torch_peak_allocated_bytes": printed.get("peak_after_window_bytes"),
        "torch_peak_of_program_bytes": printed.get("peak_allocated_bytes"),
        "peak_is_equal": breakdown.allocated_bytes == printed.get("peak_after_window_bytes"),
        "categories_bytes": sizes,
        "other_frac": other_frac,
        "other_is_within": other_frac <= MOST_OTHER_FRAC,
        "balance": lines,
        "balance_notes": {line.name: line.note for line in balance.lines if line.level == 1 and line.note},
        "process_bytes": balance.process_bytes,
        "unaccounted_bytes": unaccounted,
        "unaccounted_limit_bytes": limit,
        "unaccounted_is_within": unaccounted is not None and abs(unaccounted) <= limit,
        "has_nccl_line": lines.get("nccl") is not None,
        "failed_checks": [check.to_json() for check in rank.manifest.checks if not check.ok],
        "notes": list(rank.manifest.notes),
    }


def overhead_figures(pairs: list[tuple[list[Printed], list[Printed]]], window: int) -> dict[str, Any]:
    """Return the ratios of median step times, recorded to bare, inside the recorded steps and after them.

    The first step, which makes the optimizer's state, and the one after the recorded steps are left out.
    ``window_over_after`` has the recorded steps relative to later ones of the same processes.

    Args:
        pairs: What the ranks of a training without a recording wrote, and those of a recorded one; empty if it failed.
        window: Number of recorded steps.
    """
    inside, after = slice(1, window), slice(window + 1, None)
    whole = [(bare, recorded) for bare, recorded in pairs if bare and recorded]
    found = {
        "overhead_in_window": [_median_s(recorded, inside) / _median_s(bare, inside) for bare, recorded in whole],
        "overhead_after_window": [_median_s(recorded, after) / _median_s(bare, after) for bare, recorded in whole],
        "window_over_after": [_median_s(one, inside) / _median_s(one, after) for _, one in pairs if one],
    }
    limits = {"overhead_in_window": MOST_IN_WINDOW, "overhead_after_window": MOST_AFTER_WINDOW}
    medians = {name: statistics.median(ratios) for name, ratios in found.items() if ratios}
    return {
        **medians,
        "each_overhead": found,
        "overhead_is_within": [medians[name] <= limit for name, limit in limits.items() if name in medians],
        "bare_peak_is_equal": [
            [one["peak_allocated_bytes"] for one in bare] == [one["peak_allocated_bytes"] for one in recorded]
            for bare, recorded in whole
        ],
    }


def _median_s(runs: list[Printed], steps: slice) -> float:
    return statistics.median(time_s for one in runs for time_s in one["step_times_s"][steps])


def run_figures(run: Run, recorded: list[Printed]) -> dict[str, Any]:
    """Return the figures of every rank, and the merged view."""
    printed = {one["rank"]: one for one in recorded}
    return {
        "ranks": {str(rank.number): rank_figures(rank, printed.get(rank.number, {})) for rank in run.ranks},
        **view_figures(run),
    }


def view_figures(run: Run) -> dict[str, Any]:
    """Return the beginning of the merged view, and its tables."""
    ranks = build_rank_set(run)
    if ranks is None:
        return {"view": None}
    found = ranks.waits.straggler if ranks.waits else None
    return {
        "view": rank_set_entries(ranks),
        "categories": [asdict(one) for one in ranks.categories],
        "why_highest": [asdict(one) for one in ranks.why_highest],
        "whole_weights": [asdict(one) for one in ranks.whole_weights],
        "whole_states": [asdict(one) for one in ranks.whole_states],
        "waits": None if ranks.waits is None else asdict(ranks.waits),
        "straggler": None if found is None else found.rank,
    }


def wait_figures(run: Run, recorded: list[Printed]) -> dict[str, Any]:
    """Return each rank's waits by the merged view beside waits by CUDA events before the same collectives."""
    printed = {one["rank"]: one for one in recorded}
    view = view_figures(run)
    waits = view["waits"] or {"ranks": [], "steps": []}
    measured = direct_waits_ns(printed, waits["steps"])
    direct = {rank: statistics.median_low(times_ns) for rank, times_ns in measured.items() if times_ns}
    viewed = {one["rank"]: one["waiting_ns"] for one in waits["ranks"]}
    return {
        **view,
        "direct_waits_ns": {str(rank): time_ns for rank, time_ns in direct.items()},
        "viewed_waits_ns": {str(rank): time_ns for rank, time_ns in viewed.items()},
        "waits_by_rank": [compared_wait(rank, viewed[rank], direct[rank]) for rank in sorted(viewed)],
        "limit_frac": WAIT_FRAC,
        "hardly_ns": HARDLY_NS,
        "direct_waits_of_all_steps_ns": direct_waits_ns(printed, range(1, len(recorded[0]["arrivals_ms"]) + 1)),
        "pauses": {str(rank.number): [asdict(one) for one in rank.manifest.pauses] for rank in run.ranks},
        "printed": recorded,
    }


def compared_wait(rank: int, viewed_ns: float, direct_ns: float) -> dict[str, Any]:
    """Return one rank's wait in a step by the merged view and by CUDA events, and how they differ.

    They agree if they differ by at most WAIT_FRAC of the events' wait. Of a rank that hardly waits, less than HARDLY_NS
    by the events, the difference in ms is what counts. There it is at most HARDLY_NS, and ``difference_frac`` is None.
    """
    hardly = direct_ns < HARDLY_NS
    difference_ns = viewed_ns - direct_ns
    return {
        "rank": rank,
        "viewed_ms": viewed_ns / 1e6,
        "direct_ms": direct_ns / 1e6,
        "difference_ms": difference_ns / 1e6,
        "difference_frac": None if hardly else difference_ns / direct_ns,
        "is_within": abs(difference_ns) <= (HARDLY_NS if hardly else WAIT_FRAC * direct_ns),
    }


def direct_waits_ns(printed: dict[int, Printed], steps: Iterable[int]) -> dict[int, list[float]]:
    """Return how long each rank waits for others in each step: from its arrival at each collective to the last one's.

    A collective at the begin of the step ends at the same time on all ranks. Arrivals at the others are counted from
    there. The wait at the first one is its time beyond that of the rank with the shortest.

    Args:
        printed: What each rank wrote.
        steps: Steps, numbered from 1.
    """
    waits: dict[int, list[float]] = {rank: [] for rank in printed}
    for step in steps:
        shortest_ms = min(one["first_ms"][step - 1] for one in printed.values())
        last_ms = [max(same) for same in zip(*(one["arrivals_ms"][step - 1] for one in printed.values()), strict=True)]
        for rank, one in printed.items():
            wait_ms = one["first_ms"][step - 1] - shortest_ms + sum(last_ms) - sum(one["arrivals_ms"][step - 1])
            waits[rank].append(wait_ms * 1e6)
    return waits
