"""Figures of recordings of sharded training: each rank against torch's counters, and waits against CUDA events."""

from __future__ import annotations

import statistics
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


def overhead_figures(bare: list[Printed], recorded: list[Printed], window: int) -> dict[str, Any]:
    """Return the ratios of median step times, recorded to bare, inside the recorded steps and after them.

    The first step, which makes the optimizer's state, and the one after the recorded steps are left out.
    """
    inside, after = (_ratio(recorded, bare, *steps) for steps in ((1, window), (window + 1, None)))
    return {
        "overhead_in_window": inside,
        "overhead_after_window": after,
        "overhead_is_within": [inside <= MOST_IN_WINDOW, after <= MOST_AFTER_WINDOW],
    }


def _ratio(recorded: list[Printed], bare: list[Printed], first: int, last: int | None) -> float:
    over, under = (
        statistics.median(time_s for one in runs for time_s in one["step_times_s"][first:last])
        for runs in (recorded, bare)
    )
    return over / under


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
        "waits": None if ranks.waits is None else asdict(ranks.waits),
        "straggler": None if found is None else found.rank,
    }


def wait_figures(run: Run, recorded: list[Printed]) -> dict[str, Any]:
    """Return each rank's waits by the merged view beside waits by CUDA events around the same collectives."""
    columns = run.ranks[0].table("spans", ("kind", "step"))
    spans = zip(columns["kind"].to_pylist(), columns["step"].to_pylist(), strict=True)
    profiled = sorted({step for kind, step in spans if kind == "collective"})
    direct = direct_waits_ns({one["rank"]: one["collectives_ms"] for one in recorded}, profiled)
    view = view_figures(run)
    viewed = {one["rank"]: one["waiting_ns"] for one in (view["waits"] or {"ranks": []})["ranks"]}
    return {
        **view,
        "profiled_steps": profiled,
        "direct_waits_ns": {str(rank): time_ns for rank, time_ns in direct.items()},
        "viewed_waits_ns": {str(rank): time_ns for rank, time_ns in viewed.items()},
        "difference_frac": {
            str(rank): (viewed[rank] - direct[rank]) / direct[rank] for rank in viewed if direct.get(rank)
        },
        "limit_frac": WAIT_FRAC,
    }


def direct_waits_ns(collectives_ms: dict[int, list[list[float]]], steps: list[int]) -> dict[int, float]:
    """Return each rank's mean wait in a step: the time of its collectives beyond that of the rank that came last.

    Args:
        collectives_ms: For each rank and step, how long each collective took.
        steps: The steps to take the mean of, numbered from 1.
    """
    waits: dict[int, float] = dict.fromkeys(collectives_ms, 0.0)
    for step in steps:
        times = {rank: one[step - 1] for rank, one in collectives_ms.items()}
        shortest = sum(min(same) for same in zip(*times.values(), strict=True))
        for rank, one in times.items():
            waits[rank] += sum(one) - shortest
    return {rank: wait_ms * 1e6 / max(1, len(steps)) for rank, wait_ms in waits.items()}
