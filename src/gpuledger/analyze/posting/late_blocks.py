"""Owners of blocks that were allocated after the recorded steps, where no thread was tagged any more.

A block is known by its address if it is allocated since the recorded steps. It is known by order if it is the same
allocation of its step as one of a recorded step. It is known by size if all blocks of that size in a recorded step have
one owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.accounts import CATEGORIES
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import Journal
from gpuledger.model.journal.step_memory import MOST

if TYPE_CHECKING:
    from gpuledger.analyze.posting.device import DeviceHistory

I64 = NDArray[np.int64]
BY_ADDRESS, BY_ORDER, BY_SIZE = range(3)
_LASTING = [CATEGORIES.index(name) for name in ("weight", "buffer", "optimizer_state") if name in CATEGORIES]
_AHEAD = 32
"""Number of allocations of the recorded step that are searched for the next one of equal size."""


@dataclass
class LateBlocks:
    """Owners of blocks, -1 where not known. Codes are positions in CATEGORIES, PHASES and the kinds of knowledge."""

    category: I64
    module_id: I64
    phase: I64
    known_by: I64
    step: I64
    stack_id: I64

    @classmethod
    def unknown(cls, count: int) -> LateBlocks:
        """Return ``count`` blocks of which nothing is known."""
        return cls(*(np.full(count, -1, dtype=np.int64) for _ in fields(cls)))

    def put(self, rows: I64, other: LateBlocks) -> None:
        """Replace some rows."""
        for one in fields(self):
            getattr(self, one.name)[rows] = getattr(other, one.name)


def find_owners_of_late_blocks(
    journal: Journal, history: DeviceHistory, failure: Mapping[str, Any], rows: I64
) -> LateBlocks:
    """Return the owners of the blocks in ``rows`` of the journal's ``failure_blocks``."""
    table = journal.tables["failure_blocks"]
    address, requested = table["address"][rows], table["requested_bytes"][rows]
    found = LateBlocks.unknown(rows.size)
    live = table["state"][rows] != 0
    steps, places, sizes, ring_address = _ring(journal, failure)
    last_at = {int(one): number for number, one in enumerate(ring_address.tolist())}
    reference = _reference_step(history)
    matched = _match(sizes, steps, places, history.lives.requested_bytes[reference])
    alive = np.flatnonzero(history.lives.free_requested_index == NEVER)
    at_close = {int(history.lives.address[one]): int(one) for one in alive.tolist()}
    by_size, of_one_line = _owners_by_size(history, reference)
    for row in np.flatnonzero(live).tolist():
        place, size = int(address[row]), int(requested[row])
        number = last_at.get(place)
        kept = at_close.get(place)
        if number is not None:
            found.step[row] = steps[number]
            if matched[number] >= 0:
                _own(found, row, history, int(reference[matched[number]]), BY_ORDER)
                continue
        elif (
            kept is not None
            and int(history.lives.requested_bytes[kept]) == size
            and (not ring_address.size or history.owners.category[kept] in _LASTING)
        ):
            _own(found, row, history, kept, BY_ADDRESS)
            found.step[row] = history.owners.step[kept]
            continue
        if (known := by_size.get(size)) is not None:
            _own(found, row, history, known, BY_SIZE)
            if size not in of_one_line:
                found.stack_id[row] = -1
    return found


def _own(found: LateBlocks, row: int, history: DeviceHistory, block: int, by: int) -> None:
    owners = history.owners
    found.category[row], found.module_id[row] = owners.category[block], owners.module_id[block]
    found.phase[row], found.stack_id[row], found.known_by[row] = owners.phase[block], owners.stack_id[block], by


def _ring(journal: Journal, failure: Mapping[str, Any]) -> tuple[I64, I64, I64, I64]:
    """Return step, position in that step, requested bytes and address of each kept allocation, in order.

    Steps are -1 if the counters do not show them.
    """
    events = journal.tables["failure_events"]
    mine = (events["failure_id"] == failure.get("failure_id")) & (events["action"] == Action.ALLOC)
    count = int(mine.sum())
    last = int(failure.get("allocations") or 0)
    number = np.arange(last - count + 1, last + 1, dtype=np.int64)
    counters = journal.tables["step_memory"]
    of_device = (counters["device_idx"] == failure.get("device_idx")) & (counters["allocations"] >= 0)
    ends = _unwrapped(counters["allocations"][of_device].astype(np.int64), last)
    names = counters["step"][of_device].astype(np.int64)
    after = np.searchsorted(ends, number, side="left")
    begun = np.concatenate(([-1], ends))
    place = number - begun[after] - 1
    of_step = np.concatenate((names, [int(failure.get("step") or -1)])) if names.size else np.full(1, -1)
    steps = of_step[after]
    steps[(after == 0) & (number < (ends[0] if ends.size else 0))] = -1
    return steps, place, events["bytes"][mine], events["address"][mine]


def _unwrapped(ends: I64, last: int) -> I64:
    """Return counters that were stored modulo 2^31, with the last at most ``last``."""
    if not ends.size:
        return ends
    wraps = np.concatenate(([0], np.cumsum(np.diff(ends) < 0)))
    whole: I64 = ends + wraps * (MOST + 1)
    return whole + max((last - int(whole[-1])) // (MOST + 1), 0) * (MOST + 1)


def _reference_step(history: DeviceHistory) -> I64:
    """Return the blocks of the last whole recorded step in the order of allocation."""
    lives, owners = history.lives, history.owners
    recorded = np.unique(owners.step[lives.alloc_index >= 0])
    whole = recorded[recorded >= 1]
    if not whole.size:
        return np.zeros(0, dtype=np.int64)
    counts = [int((owners.step == step).sum()) for step in whole.tolist()]
    chosen = whole[-1] if len(counts) < 2 or counts[-1] >= counts[-2] // 2 else whole[-2]
    mine = np.flatnonzero((owners.step == chosen) & (lives.alloc_index >= 0))
    return mine[np.argsort(lives.alloc_index[mine], kind="stable")]


def _match(sizes: I64, steps: I64, places: I64, reference: I64) -> I64:
    """Return for each kept allocation the position of the same one in the recorded step; -1 if it has none."""
    found = np.full(sizes.size, -1, dtype=np.int64)
    for step in np.unique(steps[steps >= 0]).tolist():
        mine = np.flatnonzero(steps == step)
        if not mine.size or places[mine[0]] != 0:
            continue  # the ring was cut inside this step
        aligned = _aligned(sizes[mine].tolist(), reference.tolist())
        if sum(one >= 0 for one in aligned) < len(aligned) // 2:  # other sizes throughout: the order alone
            aligned = [one if one < reference.size else -1 for one in range(mine.size)]
        found[mine] = aligned
    return found


def _aligned(sizes: list[int], reference: list[int]) -> list[int]:
    """Return the position in ``reference`` of each size, in ascending order; -1 without one nearby."""
    aligned = []
    at = 0
    for size in sizes:
        ahead = next((one for one in range(at, min(at + _AHEAD, len(reference))) if reference[one] == size), -1)
        aligned.append(ahead)
        at = ahead + 1 if ahead >= 0 else at
    return aligned


def _owners_by_size(history: DeviceHistory, reference: I64) -> tuple[dict[int, int], set[int]]:
    """Return requested bytes -> a block, for sizes of which all blocks have one category and module.

    Also returns the sizes of which all blocks have one Python stack.
    """
    found: dict[int, int] = {}
    doubtful: set[int] = set()
    of_many_lines: set[int] = set()
    owners = history.owners
    for block in reference.tolist():
        size = int(history.lives.requested_bytes[block])
        other = found.setdefault(size, block)
        if (owners.category[other], owners.module_id[other]) != (owners.category[block], owners.module_id[block]):
            doubtful.add(size)
        if owners.stack_id[other] != owners.stack_id[block]:
            of_many_lines.add(size)
    return {size: block for size, block in found.items() if size not in doubtful}, set(found) - of_many_lines
