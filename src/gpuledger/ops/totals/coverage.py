"""Coverage: share of a workload's time and energy that is measured, and what to measure next. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuledger.errors import UsageError
from gpuledger.ops.totals.cost import MEASURED
from gpuledger.ops.totals.sum import NOT_ASKED, OperatorLine, Sum, share
from gpuledger.ops.workloads.workload import Workload

TOTAL_FRAC = 0.95
"""Least share of the calls that is measured for a total. With less, the sum says little about the model."""


def measured_calls_frac(total: Sum) -> float:
    """Return the share of the requested calls with a measured time."""
    asked = [line for line in total.lines if line.reason != NOT_ASKED]
    measured = sum(line.use.count for line in asked if line.source == MEASURED)
    return share(measured, sum(line.use.count for line in asked)) or 0.0


def has_total(total: Sum) -> bool:
    """Return whether enough of the requested calls is measured for a total."""
    return measured_calls_frac(total) >= TOTAL_FRAC


@dataclass(frozen=True)
class Next:
    """A missing operator, with the share of time and energy that it is expected to add."""

    line: OperatorLine
    time_frac: float
    energy_frac: float | None


@dataclass(frozen=True)
class Coverage:
    """Share of time and energy attributed to measured operators; ``following`` by expected gain, the largest first."""

    time_frac: float
    energy_frac: float | None
    following: tuple[Next, ...]

    def meets(self, target_frac: float) -> bool:
        """Return whether both shares reach a target; only that of time if no energy was measured."""
        return min(self.time_frac, 1.0 if self.energy_frac is None else self.energy_frac) >= target_frac

    def needed(self, target_frac: float) -> tuple[Next, ...]:
        """Return the next operators that are expected to reach the target."""
        chosen: list[Next] = []
        time_frac, energy_frac = self.time_frac, self.energy_frac
        for one in self.following:
            if time_frac >= target_frac and (energy_frac is None or energy_frac >= target_frac):
                break
            chosen.append(one)
            time_frac += one.time_frac
            energy_frac = None if energy_frac is None else energy_frac + (one.energy_frac or 0.0)
        return tuple(chosen)


def cover(total: Sum, chosen: Collection[str] | None = None) -> Coverage:
    """Return the coverage of a sum.

    Args:
        total: Sum of all operators, with missing ones predicted.
        chosen: Digests that count if measured; None for all.
    """
    whole_ns = math.fsum(line.time_ns or 0.0 for line in total.lines)
    whole_j = math.fsum(line.energy_j or 0.0 for line in total.lines)
    is_in = [line.source == MEASURED and (chosen is None or line.use.key.digest in chosen) for line in total.lines]
    has_energy = any(line.energy_source == MEASURED for line in total.lines)
    inside = [line for line, wanted in zip(total.lines, is_in, strict=True) if wanted]
    rest = [line for line, wanted in zip(total.lines, is_in, strict=True) if not wanted and line.cost is not None]
    following = [_next(line, whole_ns, whole_j if has_energy else 0.0) for line in rest]
    inside_j = math.fsum(line.energy_j or 0.0 for line in inside if line.energy_source == MEASURED)
    return Coverage(
        share(math.fsum(line.time_ns or 0.0 for line in inside), whole_ns) or 0.0,
        share(inside_j, whole_j) if has_energy else None,
        tuple(sorted(following, key=lambda one: -max(one.time_frac, one.energy_frac or 0.0))),
    )


def _next(line: OperatorLine, whole_ns: float, whole_j: float) -> Next:
    return Next(line, share(line.time_ns or 0.0, whole_ns) or 0.0, share(line.energy_j or 0.0, whole_j))


def digests_of_types(workload: Workload, types: Sequence[str]) -> set[str]:
    """Return the digests of operators selected by layer type or operator name.

    Raises:
        UsageError: the workload has none of one of these types.
    """
    wanted = {_plain(name) for name in types}
    layers = {_plain(layer.class_name): layer for layer in workload.layers}
    operators = {_plain(use.key.name) for use in workload.uses}
    unknown = sorted(wanted - set(layers) - operators)
    if unknown:
        have = sorted({layer.class_name for layer in workload.layers})
        raise UsageError(
            f"--only {unknown[0]}: {workload.name} has no such layer or operator",
            hint=f"Choose one of its layers: {', '.join(have)}",
        )
    inside = {digest for layer in workload.layers if _plain(layer.class_name) in wanted for digest, _ in layer.uses}
    return inside | {use.key.digest for use in workload.uses if _plain(use.key.name) in wanted}


def _plain(name: str) -> str:
    """Return a normalized name: ``Conv2d``, ``conv_2d`` and ``conv2d`` are equal."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
