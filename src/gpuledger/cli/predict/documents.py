"""Estimates, and searches for what fits, as JSON documents."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.model.schema.tables import SCHEMA_VERSION
from gpuledger.simulate.estimate.fit import kind_on
from gpuledger.simulate.interval import category_spread

if TYPE_CHECKING:
    from gpuledger.simulate.catalogue import GpuModel
    from gpuledger.simulate.estimate.fit import Fit
    from gpuledger.simulate.estimate.ranks import RanksEstimate
    from gpuledger.simulate.estimate.run import Estimate
    from gpuledger.simulate.estimate.search import Search
    from gpuledger.simulate.estimate.world_search import WorldSearch


def estimate_document(found: Estimate) -> dict[str, Any]:
    """Return the estimate as one JSON document."""
    peaks = found.peaks
    return {
        "schema_version": SCHEMA_VERSION,
        "gpu": found.card.key,
        "fits": found.fits,
        **peaks_document(found, found.rank),
        "uncompiled": list(found.uncompiled),
        "memory_errors": found.memory_errors,
        "capacity_bytes": found.card.usable_bytes,
        "confidence": found.confidence,
        "assumed": None if peaks.assumed is None else asdict(peaks.assumed),
        "interval_from": kind_on(found.card, peaks.kind),
        "by_category_spread": {name: int(share * peaks.allocated_bytes) for name, share in category_spread().items()},
        "gpus": _gpu_documents(found.others),
        "notes": list(found.notes),
        "run": str(found.run.path),
    }


def peaks_document(found: Estimate, rank: int) -> dict[str, Any]:
    """Return the verdict, the peaks and their bounds, and the categories of one rank, for a JSON document."""
    at = found.run.rank(rank)
    peaks, breakdown = found.peaks, break_down(at, find_peak(at), by=("category",))
    return {
        "verdict": found.fit.verdict,
        "peak_allocated_bytes": peaks.allocated_bytes,
        "peak_reserved_bytes": peaks.reserved_bytes,
        "peak_process_bytes": peaks.process_bytes,
        "lower_bytes": peaks.lower_bytes,
        "upper_bytes": peaks.upper_bytes,
        "full_after_steps": found.fit.full_after_steps,
        "steps": found.steps,
        "peak_step": found.peak_step,
        "by_category": {account.category: account.bytes for account in breakdown.accounts},
    }


def every_gpu_document(found: Estimate) -> dict[str, Any]:
    """Return the result for all GPUs as one JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "gpu": "all",
        "confidence": found.confidence,
        "steps": found.steps,
        "peak_step": found.peak_step,
        "gpus": _gpu_documents(found.others),
        "notes": list(found.notes),
        "run": str(found.run.path),
    }


def _gpu_documents(fits: tuple[Fit, ...]) -> list[dict[str, Any]]:
    return [
        {
            "gpu": fit.card.key,
            "verdict": fit.verdict,
            "peak_process_bytes": fit.process_bytes,
            "upper_bytes": fit.upper_bytes,
            "capacity_bytes": fit.card.usable_bytes,
            "approximate": fit.approximate,
            "full_after_steps": fit.full_after_steps,
        }
        for fit in fits
    ]


def search_document(found: Search, card: GpuModel, name: str) -> dict[str, Any]:
    """Return a search as one JSON document."""
    trials = [{"value": t.value, "peak_process_bytes": t.process_bytes, "verdict": t.verdict} for t in found.trials]
    return {
        "gpu": card.key,
        "argument": name,
        "largest": found.largest,
        "trials": trials,
        "is_uncompiled": any(trial.is_uncompiled for trial in found.trials),
        "grows": any(trial.grows for trial in found.trials),
    }


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
