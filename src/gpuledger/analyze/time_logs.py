"""Times per layer, algorithm, batch size and type, as a time log gives them, the mean of its repetitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.live import to_numbers
from gpuledger.errors import EmptyRunError

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

RECORDER = "time-log"


@dataclass(frozen=True)
class TimeLog:
    """``layer_s`` float64[algorithms, batches, types, layers]: mean seconds; NaN where the log has none."""

    name: str
    algorithms: tuple[str, ...]
    batches: tuple[int, ...]
    types: tuple[str, ...]
    layer_s: NDArray[np.float64]

    @property
    def total_s(self) -> NDArray[np.float64]:
        """Return seconds summed over the layers, float64[algorithms, batches, types]."""
        total: NDArray[np.float64] = self.layer_s.sum(axis=3)
        return total


def is_time_log(run: Run) -> bool:
    """Return whether the run was made of a time log."""
    return bool(run.ranks) and all(rank.manifest.get("recorder") == RECORDER for rank in run.ranks)


def read_time_log(run: Run) -> TimeLog:
    """Return the times of a run in seconds, the mean of its repetitions.

    Raises:
        EmptyRunError: it was not made of a time log.

    Source: the log, as it gives them (CUDA events around each layer, without a warm-up).
    """
    if not is_time_log(run):
        raise EmptyRunError(f"{run.name}: holds no times per layer", hint="gpuledger import time-log FILE")
    times = [_times_of(rank) for rank in run.ranks]
    keys = [key for one in times for key in one]
    batches = tuple(sorted({batch for batch, _ in keys}))
    types = tuple(dict.fromkeys(name for _, name in keys))
    layers = max(values.size for one in times for values in one.values())
    layer_s = np.full((len(times), len(batches), len(types), layers), np.nan)
    for algorithm, one in enumerate(times):
        for (batch, name), values in one.items():
            layer_s[algorithm, batches.index(batch), types.index(name), : values.size] = values
    algorithms = tuple(str(rank.manifest.get("algorithm") or f"rank {rank.number}") for rank in run.ranks)
    return TimeLog(run.name, algorithms, batches, types, layer_s)


def _times_of(rank: Rank) -> dict[tuple[int, str], NDArray[np.float64]]:
    """Return the mean seconds of each layer by batch size and type."""
    table = rank.table("spans", ("name_id", "start_ns", "end_ns", "module_id", "step"))
    name_id, start, end, module, step = (to_numbers(column) for column in table.columns)
    words = dict(zip(*(rank.table("names")[name].to_pylist() for name in ("name_id", "name")), strict=True))
    batch = np.array([0, *rank.manifest.get("step_batches", [])], dtype=np.int64)[step]
    found = {}
    for number, name in words.items():
        for size in np.unique(batch[name_id == number]).tolist():
            mine = (name_id == number) & (batch == size)
            repeats = np.maximum(np.bincount(module[mine]), 1)
            found[size, str(name)] = np.bincount(module[mine], weights=(end - start)[mine] / 1e9) / repeats
    return found
