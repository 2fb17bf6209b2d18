"""Memory at the end of the last steps before an out-of-memory error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.model.flight_facts import FailedAllocation
    from gpuledger.model.run import Rank

MOST_STEPS = 5
_COUNTERS = ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "blocks", "retries")
_UNKNOWN = -1


@dataclass(frozen=True)
class StepMemory:
    """The counters at the end of a step. Values are None if they are not known.

    ``peak_allocated_bytes`` is the highest since the program started, or since it reset its peak statistics.
    ``blocks`` are allocated. ``retries`` are all allocations so far that succeeded after the cache was emptied.
    ``host_bytes`` is the host memory of the process.
    """

    step: int
    allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    blocks: int | None = None
    retries: int | None = None
    host_bytes: int | None = None


def read_last_steps(rank: Rank, failure: FailedAllocation) -> tuple[StepMemory, ...]:
    """Return the counters of the last steps that had ended at an error, the latest last.

    Those of the device, or of the host. Empty if the step of the error, or its counters, are not known.

    Source: the allocator's counters, sizes rounded up to 512 bytes; host memory from the kernel.
    """
    if failure.step is None:
        return ()
    device = failure.device_idx or 0
    names = ("host_bytes",) if device < 0 else _COUNTERS
    table = rank.table("step_memory", ("device_idx", "step", *names))
    values = {name: to_numbers(table.column(name), _UNKNOWN) for name in table.column_names}
    devices = values["device_idx"]
    if device < 0 and devices.size:
        device = int(devices[-1])  # the rows of every device have the process's host memory
    last = np.flatnonzero((devices == device) & (values["step"] < failure.step))[-MOST_STEPS:]
    known = {name: [None if one == _UNKNOWN else one for one in values[name][last].tolist()] for name in names}
    steps = values["step"][last].tolist()
    return tuple(StepMemory(step, **{name: known[name][row] for name in names}) for row, step in enumerate(steps))
