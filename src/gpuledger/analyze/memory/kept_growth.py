"""Tensors that one container of the program keeps, more with every step or every evaluation, until the end.

And the opposite: host memory that rises without a tensor or container that does.

Memory that is free in the process takes small tensors, so that host memory does not grow, or only later. The number of
live tensors shows it at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.trends import PARTS, rising
from gpuledger.model.flight_facts import LEAST_KEPT_BYTES

if TYPE_CHECKING:
    from gpuledger.analyze.memory.trends import F64, Trend
    from gpuledger.model.flight_facts import Holder
    from gpuledger.model.run import Rank

_LEAST_BYTES = 1 << 20
_LEAST_RISE_BYTES = 32 << 20
_SHARE = 1 / 3
"""Smallest share of the new tensors that the container keeps. Others are losses and rates, which are small."""
_STILL_FRAC = 0.8
"""Smallest number of tensors that it gains after the last census, but for those of one evaluation, relative to before.

The other tensors become more as before. A cache is full at some time.
"""


@dataclass(frozen=True)
class KeptTensors:
    """A container, the bytes that it gains in a step, and the step from which on it does."""

    holder: Holder
    step_bytes: float
    since_step: int


def find_kept_tensors(rank: Rank, last_step: int) -> KeptTensors | None:
    """Return the container that keeps more and more tensors; None if there is none, or if it has stopped to grow.

    Args:
        rank: The rank.
        last_step: The step until which it must grow.

    Source: the number of live tensors at some steps until the last one, and censuses of the program's containers.
    """
    censuses = [one for one in rank.manifest.censuses if one.step <= last_step]
    counts = [one for one in rank.manifest.tensor_counts if one[0] <= last_step]
    if not censuses or censuses[-1].kept is None or not counts:
        return None
    first, last, kept = censuses[0], censuses[-1], censuses[-1].kept
    steps, tensors = np.array(counts, dtype=np.float64).T
    trend = rising(steps, tensors) or rising(steps, tensors, PARTS // 2)
    if trend is None or trend.since_step >= last.step:
        return None
    since_step = max(first.step, trend.since_step)
    step_tensors = kept.more * kept.element_tensors / (last.step - since_step)
    step_bytes = kept.more * kept.element_bytes / (last.step - since_step)
    if step_bytes < LEAST_KEPT_BYTES or step_bytes * (float(steps[-1]) - since_step) < _LEAST_BYTES:
        return None
    before, then = _at(since_step, steps, tensors), _at(last.step, steps, tensors)
    per_step = (then - before) / (last.step - since_step)
    later = float(steps[-1]) - last.step
    kept_later = float(tensors[-1]) - then - (per_step - step_tensors) * later + float(np.diff(tensors).max())
    goes_on = step_tensors >= _SHARE * per_step and kept_later >= _STILL_FRAC * step_tensors * later
    return KeptTensors(kept, step_bytes, since_step) if goes_on else None


def find_host_rise(rank: Rank) -> Trend | None:
    """Return the steady rise of host memory after the first census, whatever keeps it; None if there is none.

    That C code keeps memory looks the same as memory that is allocated at once and written little by little.

    Source: the process's anonymous, shared and swapped pages at each step.
    """
    table = rank.table("step_memory", ("step", "host_bytes"))
    steps, host = (table.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in table.column_names)
    steps, first = np.unique(steps, return_index=True)  # the rows of every device have the host's memory
    later = steps >= (rank.manifest.censuses[0].step if rank.manifest.censuses else 0)
    found = rising(steps[later], host[first][later])
    return found if found is not None and found.total >= _LEAST_RISE_BYTES else None


def _at(step: int, steps: F64, tensors: F64) -> float:
    return float(np.interp(step, steps, tensors))
