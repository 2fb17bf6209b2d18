"""The last allocations before an out-of-memory error, as the flight recorder kept them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.owners import says_less_than_a_call
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import Journal
from gpuledger.model.journal.step_memory import MOST

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class KeptAllocations:
    """The kept allocations in order.

    ``step`` is -1 if the counters do not show it. ``place`` is the position in the step, ``stack_id`` the allocation's
    own Python stack, -1 without one.
    """

    step: I64
    place: I64
    requested_bytes: I64
    address: I64
    stack_id: I64


def read_kept_allocations(journal: Journal, failure: Mapping[str, Any]) -> KeptAllocations:
    """Return the allocations that the allocator kept until a failure.

    Source: the allocator's history. The steps follow from its counter of allocations at each step's end.
    """
    events = journal.tables["failure_events"]
    of_failure = np.flatnonzero(events["failure_id"] == failure.get("failure_id"))
    mine = of_failure[events["action"][of_failure] == Action.ALLOC]
    count = mine.size
    last = int(failure.get("allocations") or 0)
    number = np.arange(last - count + 1, last + 1, dtype=np.int64)
    counters = journal.tables["step_memory"]
    of_device = (counters["device_idx"] == failure.get("device_idx")) & (counters["allocations"] >= 0)
    ends = _unwrapped(counters["allocations"][of_device].astype(np.int64), last)
    names = counters["step"][of_device].astype(np.int64)
    after = np.searchsorted(ends, number, side="left")
    begun = np.concatenate(([-1], ends))
    of_step = np.concatenate((names, [int(failure.get("step") or -1)])) if names.size else np.full(1, -1)
    steps = of_step[after]
    steps[(after == 0) & (number < (ends[0] if ends.size else 0))] = -1
    stacks = np.full(of_failure.size, -1, dtype=np.int64)
    own = own_stacks(journal, failure)
    event_idx = own["event_idx"]
    known = (event_idx >= 0) & (event_idx < of_failure.size)
    stacks[event_idx[known]] = own["stack_id"][known]
    return KeptAllocations(
        step=steps,
        place=number - begun[after] - 1,
        requested_bytes=events["bytes"][mine],
        address=events["address"][mine],
        stack_id=stacks[events["action"][of_failure] == Action.ALLOC],
    )


def own_stacks(journal: Journal, failure: Mapping[str, Any]) -> dict[str, I64]:
    """Return the rows of ``failure_stacks`` of a failure. A stack that names no line of the program becomes -1."""
    table = journal.tables["failure_stacks"]
    rows = table["failure_id"] == failure.get("failure_id")
    found = {name: values[rows].astype(np.int64) for name, values in table.items()}
    says_less = np.array([*map(says_less_than_a_call, journal.stacks), True], dtype=bool)
    found["stack_id"] = np.where(says_less[found["stack_id"]], -1, found["stack_id"])
    return found


def _unwrapped(ends: I64, last: int) -> I64:
    """Return counters that were stored modulo 2^31, with the last at most ``last``."""
    if not ends.size:
        return ends
    wraps = np.concatenate(([0], np.cumsum(np.diff(ends) < 0)))
    whole: I64 = ends + wraps * (MOST + 1)
    return whole + max((last - int(whole[-1])) // (MOST + 1), 0) * (MOST + 1)
