"""Columns and rows that several views of a report share: differences, power, energy windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuledger.analyze.memory.timeline import thin

if TYPE_CHECKING:
    from gpuledger.analyze.memory.live import I64
    from gpuledger.analyze.samples.series import Line
    from gpuledger.model.run import Rank

POWER_POINTS = 2000
MAX_WINDOWS = 500


def differences(values: I64 | Sequence[int]) -> list[int]:
    """Return the first value and then each one's difference to the one before it."""
    steps: list[int] = np.diff(np.asarray(values, dtype=np.int64), prepend=0).tolist()
    return steps


def power_columns(line: Line, origin_ns: int) -> dict[str, Any]:
    """Return the readings of power: time, and watts in tenths."""
    kept = thin(line.values, line.t_ns, POWER_POINTS)
    return {
        "t": differences(line.t_ns[kept] - origin_ns),
        "tenths_w": differences(np.rint(line.values[kept] * 10).astype(np.int64)),
        "source": line.source,
    }


def read_windows(rank: Rank, device_idx: int) -> tuple[dict[str, Any], ...]:
    """Return the energy windows of one card by time, the first :data:`MAX_WINDOWS` of them, as rows of the table."""
    rows = [row for row in rank.table("windows").to_pylist() if row["device_idx"] == device_idx]
    return tuple(sorted(rows, key=lambda row: (row["start_ns"], -row["end_ns"]))[:MAX_WINDOWS])


def window_rows(windows: Iterable[dict[str, Any]], origin_ns: int) -> list[dict[str, Any]]:
    """Return energy windows as the page reads them."""
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
