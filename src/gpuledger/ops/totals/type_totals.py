"""Sums by operator type. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.ops.totals.sum import NOT_ASKED, OperatorLine, Sum, half_interval


@dataclass(frozen=True)
class TypeTotal:
    """All requested operators of one type. Time and energy are None if none of them is known."""

    operator: str
    count: int
    distinct: int
    time_ns: float | None
    time_half_ns: float | None
    energy_j: float | None
    energy_half_j: float | None
    unknown: int


def by_type(total: Sum) -> tuple[TypeTotal, ...]:
    """Return the sums by operator type, longest first; types without known times are last."""
    groups: dict[str, list[OperatorLine]] = {}
    for line in total.lines:
        if line.reason == NOT_ASKED:
            continue
        groups.setdefault(line.use.key.name, []).append(line)
    totals = (_type_total(name, lines) for name, lines in groups.items())
    return tuple(sorted(totals, key=lambda one: -(one.time_ns or 0.0)))


def _type_total(name: str, lines: Sequence[OperatorLine]) -> TypeTotal:
    known = [line for line in lines if line.cost is not None]
    time_ns = math.fsum(line.time_ns or 0.0 for line in known)
    energies = [line for line in known if line.energy_j is not None]
    return TypeTotal(
        operator=name,
        count=sum(line.use.count for line in lines),
        distinct=len(lines),
        time_ns=time_ns if known else None,
        time_half_ns=half_interval(known, "time") if known else None,
        energy_j=math.fsum(line.energy_j or 0.0 for line in energies) if energies else None,
        energy_half_j=half_interval(energies, "energy") if energies else None,
        unknown=len(lines) - len(known),
    )
