"""How far a whole model is from the sum of its operators: the differences of pairs that were measured. Pure.

The scatter of the operators' measurements says little about it: a model waits for the CPU, and its operators affect one
another. So the interval is the 90 % quantile of the differences of whole eager models on an H200, by how much of the
time the CPU needs for the launches (split conformal prediction).
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpuledger.ops.totals.coverage import has_total
from gpuledger.ops.totals.sum import NOT_ASKED, Sum

LEVEL_FRAC = 0.9
"""Share of whole models within the interval."""
HOST_EDGES = (0.5, 1.0)
"""Limits of the classes: time of the launches on the CPU as a share of the operators' time on the GPU."""
PLACE = "sum_errors.json"
"""File of the measured pairs in this package, written by ``tools/make_sum_errors.py``."""


@dataclass(frozen=True)
class PairError:
    """One measured pair: the launches' share, and the whole as a share of its sum."""

    host_frac: float
    time_frac: float
    energy_frac: float | None


@dataclass(frozen=True)
class WholeInterval:
    """Half the interval in which the whole model is expected, and the pairs that it is from; None without pairs."""

    time_half_ns: float | None
    energy_half_j: float | None
    pairs: int
    source: str


def interval_of_whole(total: Sum) -> WholeInterval | None:
    """Return the interval of the whole model; None without a total, for a part of a model, and on a CPU.

    Source: differences of eager models from their sums on an H200. Another GPU or host can differ by more.
    """
    gpu_ns = max(total.busy_ns, total.queued_ns or 0.0)
    is_part = any(line.reason == NOT_ASKED for line in total.lines)
    if total.host_ns is None or not gpu_ns or is_part or not has_total(total):
        return None
    alike, source = pairs_like(total.host_ns / gpu_ns)
    time_frac = half_width_frac([pair.time_frac for pair in alike])
    energy_frac = half_width_frac([pair.energy_frac for pair in alike if pair.energy_frac is not None])
    energy_half_j = None if total.energy_j is None or energy_frac is None else total.energy_j * energy_frac
    return WholeInterval(None if time_frac is None else total.step_ns * time_frac, energy_half_j, len(alike), source)


def pairs_like(host_frac: float) -> tuple[list[PairError], str]:
    """Return the measured pairs of the same class, and what they were measured on."""
    pairs, source = _measured_pairs()
    return [pair for pair in pairs if class_of_host(pair.host_frac) == class_of_host(host_frac)], source


def class_of_host(host_frac: float) -> int:
    """Return the class of a share of the launches."""
    return bisect_right(HOST_EDGES, host_frac)


def half_width_frac(shares: Sequence[float]) -> float | None:
    """Return the difference from 1 that a new pair exceeds in 10 % of cases; None if the pairs are too few."""
    rank = math.ceil((len(shares) + 1) * LEVEL_FRAC)
    return sorted(abs(share - 1) for share in shares)[rank - 1] if rank <= len(shares) else None


@cache
def _measured_pairs() -> tuple[tuple[PairError, ...], str]:
    value = json.loads(files("gpuledger.ops.totals").joinpath(PLACE).read_text(encoding="utf-8"))
    return tuple(PairError(*row) for row in value["pairs"]), str(value["source"])
