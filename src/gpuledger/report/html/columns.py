"""Columns and rows that several views of a report share: differences, power, energy windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gpuledger.analyze.memory.lifetimes import I64
    from gpuledger.analyze.samples.series import SampleLine


def differences(values: I64 | Sequence[int]) -> list[int]:
    """Return the first value, followed by the difference of each value from the one before it."""
    steps: list[int] = np.diff(np.asarray(values, dtype=np.int64), prepend=0).tolist()
    return steps


def power_columns(line: SampleLine, origin_ns: int) -> dict[str, Any]:
    """Return the samples of power: time in ns, and power in W, rounded to tenths."""
    return {
        "t": differences(line.t_ns - origin_ns),
        "tenths_w": differences(np.rint(line.values * 10).astype(np.int64)),
        "source": line.source,
    }


def window_rows(windows: Iterable[dict[str, Any]], origin_ns: int) -> list[dict[str, Any]]:
    """Return energy windows in the form that the page reads."""
    return [
        {
            "name": row["name"] or "",
            "start": row["start_ns"] - origin_ns,
            "end": row["end_ns"] - origin_ns,
            "energy_j": _rounded(row["energy_j"]),
            "uncertainty_j": _rounded(row["uncertainty_j"]),
            "ticks": row["ticks"],
            "throttled_ns": row["throttled_ns"],
        }
        for row in windows
    ]


def _rounded(joules: float | None) -> float | None:
    return None if joules is None else round(joules, 3)
