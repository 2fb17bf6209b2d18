"""Times by layer, algorithm, batch size and dtype from a time log, as means over its repetitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuledger.errors import EmptyRunError, InputError
from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.model.run import Rank, Run

F64 = NDArray[np.float64]
MAX_TIMES = 1 << 23
"""Maximum number of values: algorithms times batch sizes, dtypes and layers. Each takes eight bytes, several times."""


@dataclass(frozen=True)
class TimeLog:
    """``layer_s`` float64[algorithms, batches, types, layers]: mean seconds of the repetitions.

    NaN is what the log does not have; times that are all zero were not measured. ``layer_low_s`` and ``layer_high_s``
    are the fastest and the slowest repetition. ``total_*`` float64[algorithms, batches, types] are the same of the sum
    over the layers, ``repeats`` int64 of that shape how many repetitions there are.
    """

    name: str
    algorithms: tuple[str, ...]
    batches: tuple[int, ...]
    types: tuple[str, ...]
    layer_s: F64
    layer_low_s: F64
    layer_high_s: F64
    total_low_s: F64
    total_high_s: F64
    repeats: NDArray[np.int64]
    files: tuple[str, ...] = ()

    @property
    def total_s(self) -> F64:
        """Return seconds summed over the layers, float64[algorithms, batches, types]."""
        total: F64 = self.layer_s.sum(axis=3)
        return total


def is_time_log(run: Run) -> bool:
    """Return whether the run was imported from a time log."""
    return bool(run.ranks) and all(rank.manifest.recorder.has_layer_times for rank in run.ranks)


def read_time_log(run: Run) -> TimeLog:
    """Return the times of a run in seconds, as means over its repetitions.

    Raises:
        EmptyRunError: it was not imported from a time log, or has no times.
        InputError: it has too many batch sizes, dtypes and layers to compare.

    Source: the log's values (CUDA events around each layer, without a warm-up).
    """
    if not is_time_log(run):
        raise EmptyRunError(
            f"{run.name}: the run has no times per layer",
            hint="Import a log that has them: gpuledger import time-log FILE",
        )
    times = [_times_of(rank) for rank in run.ranks]
    keys = list(dict.fromkeys(key for one in times for key in one))
    batches = tuple(sorted({batch for batch, _ in keys}))
    types = tuple(dict.fromkeys(name for _, name in keys))
    if not keys:
        raise EmptyRunError(f"{run.name}: the run has no times per layer")
    layers = max(repeats.shape[1] for one in times for repeats in one.values())
    if len(times) * len(batches) * len(types) * layers > MAX_TIMES:
        raise InputError(
            f"{run.name}: {len(batches):,} batch sizes, {len(types):,} types and {layers:,} layers, which is too many",
            hint="Import fewer files at once",
        )
    shape = (len(times), len(batches), len(types))
    mean_s, low_s, high_s = (np.full((*shape, layers), np.nan) for _ in range(3))
    total_low_s, total_high_s = (np.full(shape, np.nan) for _ in range(2))
    count = np.zeros(shape, dtype=np.int64)
    for algorithm, one in enumerate(times):
        for (batch, name), repeats in one.items():
            if not (repeats > 0).any():
                continue
            place = algorithm, batches.index(batch), types.index(name)
            own = slice(repeats.shape[1])
            mean_s[place][own] = repeats.mean(axis=0)
            low_s[place][own], high_s[place][own] = repeats.min(axis=0), repeats.max(axis=0)
            total_low_s[place], total_high_s[place] = repeats.sum(axis=1).min(), repeats.sum(axis=1).max()
            count[place] = repeats.shape[0]
    algorithms = tuple(rank.manifest.algorithm or f"rank {rank.number}" for rank in run.ranks)
    files = run.manifest.imported.files if run.manifest.imported else ()
    values = (mean_s, low_s, high_s, total_low_s, total_high_s, count)
    return TimeLog(run.name, algorithms, batches, types, *values, tuple(files))


def _times_of(rank: Rank) -> dict[tuple[int, str], F64]:
    """Return the seconds float64[repetitions, layers] by batch size and type."""
    table = rank.table("spans", ("name_id", "start_ns", "end_ns", "module_id", "step"))
    name_id, start, end, module, step = (to_numbers(column) for column in table.columns)
    words = dict(zip(*(rank.table("names")[name].to_pylist() for name in ("name_id", "name")), strict=True))
    batches = np.array([0, *rank.manifest.step_batches], dtype=np.int64)
    layers = len(rank.table("modules", ("module_id",)))
    known = (module >= 0) & (module < layers) & (step >= 0) & (step < batches.size) & np.isin(name_id, list(words))
    if not known.any():
        return {}
    module, time_s = module[known], (end - start)[known] / 1e9
    pairs, place = np.unique(np.stack([name_id[known], batches[step[known]]]), axis=1, return_inverse=True)
    order = np.argsort(place.reshape(-1), kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(place.reshape(-1), minlength=pairs.shape[1]))[:-1])
    found = {}
    steps = step[known]
    for number, size, mine in zip(*pairs.tolist(), groups, strict=True):
        repetition = np.unique(steps[mine], return_inverse=True)[1].reshape(-1)
        values = np.zeros((int(repetition.max()) + 1, int(module[mine].max()) + 1))
        values[repetition, module[mine]] = time_s[mine]
        found[size, str(words[number])] = values
    return found
