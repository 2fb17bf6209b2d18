"""Owners of blocks that were allocated after the recorded steps, where no thread was tagged any more.

A block's line is known from its own Python stack, if one was taken. Its owner is then that of the recorded blocks of
this line, unless the order of its step says it. The rest comes from another block. A block is known
by its address if it is allocated since the recorded steps, or if the error happened in them. It is known by order if it
is the same allocation of its step as one of a recorded step, or of a step of which all stacks were taken. These steps
can have another batch. It is known by size if the allocations of its step are not known, and all blocks of that size in
a recorded step have one owner, or all blocks of that size with a stack of their own one category.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.late.kept_allocations import KeptAllocations, own_stacks, read_kept_allocations
from gpuledger.analyze.posting.late.line_owners import UNKNOWN, LineOwners, Lines, Owner, common_to
from gpuledger.analyze.posting.late.step_orders import StepMatch, match_step
from gpuledger.analyze.posting.replay import NEVER
from gpuledger.model.accounts import CATEGORIES, LASTING_CATEGORIES, Phase
from gpuledger.model.journal.journal import REASONS
from gpuledger.model.journal.reading import Journal

if TYPE_CHECKING:
    from gpuledger.analyze.posting.device import DeviceHistory

I64 = NDArray[np.int64]
BY_ADDRESS, BY_ORDER, BY_SIZE, BY_STACK = range(4)
_LASTING = [CATEGORIES.index(name) for name in LASTING_CATEGORIES]
_WITH_STACKS_FRAC = 0.5
"""Share of a step's allocations that must have stacks of their own, for other steps to be compared with it.

Those of autograd's threads have none.
"""
_WELL_MATCHED_FRAC = 0.9
"""Share of a step's allocations that must be found in the recorded step. Otherwise other steps are compared, too."""

_SMALL_BYTES, _SMALL_SEGMENT_BYTES = 1 << 20, 2 << 20
_SHARED_BYTES, _SHARED_SEGMENT_BYTES = 10 << 20, 20 << 20
_ROUND_BYTES, _ROUND_SMALL_BYTES = 2 << 20, 512
"""PyTorch's sizes of segments: of requests up to 1 MiB, of others below 10 MiB, and what larger ones are rounded to."""


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


@dataclass(frozen=True)
class _Reference:
    """One step in the order of allocation. ``blocks`` are blocks of the recorded steps, -1 where none is known."""

    sizes: list[int]
    blocks: I64
    stack_id: I64
    owners: list[Hashable]
    """Category, module, phase and stack of each block."""

    @classmethod
    def of(cls, history: DeviceHistory, sizes: list[int], blocks: I64, stack_id: I64) -> _Reference:
        """Return a step with the owners of blocks of the recorded steps."""
        of_all = (history.owners.category, history.owners.module_id, history.owners.phase)
        columns = [np.append(column, -1)[blocks].tolist() for column in of_all]  # -1 where no block is known
        return cls(sizes, blocks, stack_id, list(zip(*columns, stack_id.tolist(), strict=True)))


def find_owners_of_late_blocks(
    journal: Journal, history: DeviceHistory | None, failure: Mapping[str, Any], rows: I64
) -> LateBlocks:
    """Return the owners of the blocks in ``rows`` of the journal's ``failure_blocks``.

    Args:
        journal: The rank's journal.
        history: What was recorded of the device; None if nothing was.
        failure: The out-of-memory error.
        rows: Blocks of that error.
    """
    table = journal.tables["failure_blocks"]
    address, live = table["address"][rows].tolist(), np.flatnonzero(table["state"][rows] != 0).tolist()
    own, lines = _stacks_of_live(journal, failure), Lines(journal)
    found = LateBlocks.unknown(rows.size)
    if history is not None:
        _compare(found, journal, history, failure, lines, {row: address[row] for row in live}, own, rows)
    for row in live:
        _use_own_stack(found, row, own.get(address[row], -1), lines)
    if history is not None and own:
        sizes = table["requested_bytes"][rows]
        outlived = found.step != int(failure.get("step") or -1)
        _compare_lines(found, np.array(live), sizes, outlived, LineOwners(history, lines), lines)
    return found


def _compare_lines(
    found: LateBlocks, live: I64, sizes: I64, outlived: NDArray[np.bool_], owners: LineOwners, lines: Lines
) -> None:
    """Fill the rows of blocks of which the line is known, and of blocks that outlived their step and have such a size.

    The line of most blocks of a size must be known, and all of these must have one category.
    """
    is_own = found.known_by[live] == BY_STACK
    for row in live[is_own & (found.category[live] < 0)].tolist():
        line, size = lines.of(int(found.stack_id[row])), int(sizes[row])
        _put_owner(found, row, owners.of(line, size, outlived=bool(outlived[row])))
    old = live[outlived[live]]
    of_size: dict[int, list[int]] = {}
    for row in old[found.known_by[old] == BY_STACK].tolist():
        of_size.setdefault(int(sizes[row]), []).append(row)
    unknown = old[found.known_by[old] < 0]
    for size in np.unique(sizes[unknown]).tolist():
        same, others = of_size.get(size, []), unknown[sizes[unknown] == size].tolist()
        owner = common_to(Owner(*_owner_of(found, row)) for row in same) if len(same) >= len(others) else UNKNOWN
        stacks = {int(found.stack_id[row]) for row in same}
        for row in others if owner.category >= 0 else ():
            found.known_by[row] = BY_SIZE
            found.stack_id[row] = stacks.copy().pop() if len(stacks) == 1 else -1
            _put_owner(found, row, owner)


def _owner_of(found: LateBlocks, row: int) -> tuple[int, int, int]:
    return int(found.category[row]), int(found.module_id[row]), int(found.phase[row])


def _put_owner(found: LateBlocks, row: int, owner: Owner) -> None:
    found.category[row], found.module_id[row], found.phase[row] = owner


def _compare(
    found: LateBlocks,
    journal: Journal,
    history: DeviceHistory,
    failure: Mapping[str, Any],
    lines: Lines,
    live: Mapping[int, int],
    own: Mapping[int, int],
    rows: I64,
) -> None:
    """Fill the rows of blocks that are found in the recorded steps. ``live`` is row -> address."""
    requested = journal.tables["failure_blocks"]["requested_bytes"][rows]
    kept, last_at = _kept_with_stacks(journal, failure, own)
    step = _reference_step(history)
    recorded = _reference_of(history, step)
    with_live = set(kept.step[[last_at[place] for place in live.values() if place in last_at]].tolist())
    failed_step = int(failure.get("step") or -1)
    block, stack, was_compared = _compare_steps(history, kept, recorded, lines, failed_step, with_live)
    error_index = _index_of_error(journal, history, failure)
    at_address = {int(history.lives.address[one]): int(one) for one in _alive(history, error_index).tolist()}
    by_size, of_one_line = _owners_by_size(history, step)
    for row, place in live.items():
        size = int(requested[row])
        number = last_at.get(place)
        at = at_address.get(place)
        is_same = at is not None and int(history.lives.requested_bytes[at]) == size
        if at is not None and is_same and error_index is not None:
            _own(found, row, history, at, BY_ADDRESS)
            found.step[row] = history.owners.step[at]
        elif number is not None:
            found.step[row] = kept.step[number]
            if block[number] >= 0 or stack[number] >= 0:
                _own(found, row, history, int(block[number]), BY_ORDER)
                found.stack_id[row] = stack[number]
        elif at is not None and is_same and (not kept.address.size or history.owners.category[at] in _LASTING):
            _own(found, row, history, at, BY_ADDRESS)
            found.step[row] = history.owners.step[at]
        if found.known_by[row] < 0 and not (number is not None and was_compared[number]):
            _own_by_size(found, row, history, by_size.get(size, -1), has_line=size in of_one_line)


def _index_of_error(journal: Journal, history: DeviceHistory, failure: Mapping[str, Any]) -> int | None:
    """Return the allocator's event before an error; None if it happened after the recorded steps.

    The counters are read right after an error in these steps.
    """
    table = journal.tables["counters"]
    read = (table["device_idx"] == history.device_idx) & (table["reason"] == REASONS.index("oom"))
    later = np.flatnonzero(read & (table["t_ns"] >= int(failure.get("t_ns") or 0)))
    if not later.size:
        return None
    at = later[:1]
    return int(history.counts.index_of(table["alloc_count"][at], table["free_count"][at])[0])


def _alive(history: DeviceHistory, index: int | None) -> I64:
    """Return the blocks that were allocated after an event, or at the end of the recorded steps."""
    lives = history.lives
    if index is None:
        return np.flatnonzero(lives.free_requested_index == NEVER)
    return np.flatnonzero((lives.alloc_index <= index) & (lives.free_requested_index > index))


def find_module_of_request(journal: Journal, history: DeviceHistory, failure: Mapping[str, Any]) -> int:
    """Return the module that asked for memory in its backward, and did not get it; -1 where the order does not say it.

    The allocations of the step must be those of a recorded one, and the request its next one, with a size that fits.
    """
    kept, _ = _kept_with_stacks(journal, failure, _stacks_of_live(journal, failure))
    mine = np.flatnonzero(kept.step == int(failure.get("step") or -1))
    if not mine.size or kept.place[mine[0]] != 0:
        return -1
    recorded = _reference_of(history, _reference_step(history))
    match = _match(kept, mine, recorded, Lines(journal), is_whole=False)
    tried_bytes = int(failure.get("tried_bytes") or 0)
    modules = {
        int(history.owners.module_id[recorded.blocks[place]])
        if any(_can_be_of(size, tried_bytes) for size in match.changes.of(recorded.sizes[place]))
        and history.owners.phase[recorded.blocks[place]] == Phase.BACKWARD
        else -1
        for place in match.next_places
    }
    return modules.pop() if len(modules) == 1 else -1


def _can_be_of(size: int, tried_bytes: int) -> bool:
    """Return whether a request of ``size`` bytes can have failed with ``tried_bytes``: the size of its new segment."""
    if size <= _SMALL_BYTES:
        return tried_bytes == _SMALL_SEGMENT_BYTES
    if size < _SHARED_BYTES:
        return tried_bytes == _SHARED_SEGMENT_BYTES
    return 0 <= tried_bytes - size < _ROUND_BYTES + _ROUND_SMALL_BYTES


def _stacks_of_live(journal: Journal, failure: Mapping[str, Any]) -> dict[int, int]:
    """Return address -> own Python stack, of the live blocks that have one."""
    own = own_stacks(journal, failure)
    of_live = (own["event_idx"] < 0) & (own["stack_id"] >= 0)
    return dict(zip(own["address"][of_live].tolist(), own["stack_id"][of_live].tolist(), strict=True))


def _kept_with_stacks(
    journal: Journal, failure: Mapping[str, Any], own: Mapping[int, int]
) -> tuple[KeptAllocations, dict[int, int]]:
    """Return the kept allocations, also with the stacks that only the live blocks have, and the last one by address."""
    kept = read_kept_allocations(journal, failure)
    last_at = {int(one): number for number, one in enumerate(kept.address.tolist())}
    stacks = kept.stack_id.copy()
    for address, stack in own.items():
        if address in last_at:
            stacks[last_at[address]] = stack
    return replace(kept, stack_id=stacks), last_at


def _use_own_stack(found: LateBlocks, row: int, own: int, lines: Lines) -> None:
    """Give a block its own stack. What another block says of it is dropped if that one is of another line."""
    if own < 0:
        return
    if lines.agree(own, int(found.stack_id[row])) is False:
        found.category[row] = found.module_id[row] = found.phase[row] = -1
    found.stack_id[row], found.known_by[row] = own, BY_STACK


def _own(found: LateBlocks, row: int, history: DeviceHistory, block: int, by: int) -> None:
    found.known_by[row] = by
    if block >= 0:
        owners = history.owners
        found.category[row], found.module_id[row] = owners.category[block], owners.module_id[block]
        found.phase[row], found.stack_id[row] = owners.phase[block], owners.stack_id[block]


def _own_by_size(found: LateBlocks, row: int, history: DeviceHistory, block: int, *, has_line: bool) -> None:
    if block >= 0:
        _own(found, row, history, block, BY_SIZE)
        if not has_line:
            found.stack_id[row] = -1


def _compare_steps(
    history: DeviceHistory,
    kept: KeptAllocations,
    recorded: _Reference,
    lines: Lines,
    failed_step: int,
    with_live: Set[int],
) -> tuple[I64, I64, NDArray[np.bool_]]:
    """Return for each kept allocation the same one of a recorded step, its stack, and whether its step was compared.

    The first two are -1 where the order does not say it, and of steps that neither have live blocks nor stacks.
    """
    count = kept.step.size
    block, stack = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    compared = np.zeros(count, dtype=bool)
    whole = {
        step: mine
        for step in np.unique(kept.step[kept.step >= 0]).tolist()
        if kept.place[(mine := np.flatnonzero(kept.step == step))[0]] == 0  # the others have no beginning
    }
    has_stacks = {step: (kept.stack_id[mine] >= 0).mean() >= _WITH_STACKS_FRAC for step, mine in whole.items()}
    whole = {step: mine for step, mine in whole.items() if step in with_live or has_stacks[step]}
    taken: dict[int, _Reference] = {}
    for step, mine in whole.items():
        compared[mine] = True
        at = _places(kept, mine, recorded, lines, is_whole=step != failed_step)
        block[mine] = np.where(at >= 0, recorded.blocks[at], -1) if recorded.sizes else -1
        stack[mine] = np.where(at >= 0, recorded.stack_id[at], -1) if recorded.sizes else -1
        if step != failed_step and has_stacks[step]:
            stacks = np.where(kept.stack_id[mine] >= 0, kept.stack_id[mine], stack[mine])
            taken[step] = _Reference.of(history, kept.requested_bytes[mine].tolist(), block[mine], stacks)
    for step, mine in whole.items():
        matched = (block[mine] >= 0).mean()
        if step in taken or not taken or matched >= _WELL_MATCHED_FRAC:
            continue
        nearest = taken[min(taken, key=lambda other: abs(other - step))]
        at = _places(kept, mine, nearest, lines, is_whole=step != failed_step)
        if (at >= 0).mean() > matched:
            block[mine], stack[mine] = (
                np.where(at >= 0, values[at], -1) for values in (nearest.blocks, nearest.stack_id)
            )
    return block, stack, compared


def _places(kept: KeptAllocations, mine: I64, reference: _Reference, lines: Lines, *, is_whole: bool) -> I64:
    """Return the position in ``reference`` of each allocation of a step; -1 where the orders do not match."""
    return np.array(_match(kept, mine, reference, lines, is_whole=is_whole).places, dtype=np.int64)


def _match(kept: KeptAllocations, mine: I64, reference: _Reference, lines: Lines, *, is_whole: bool) -> StepMatch:
    """Return where the allocations of a step are in ``reference``.

    The lines of the step's own stacks can contradict it. Without sure sizes, they must confirm it.
    """
    found = match_step(kept.requested_bytes[mine].tolist(), reference.sizes, reference.owners, is_whole=is_whole)
    agreed = [
        lines.agree(own, int(reference.stack_id[place])) if place >= 0 else None
        for own, place in zip(kept.stack_id[mine].tolist(), found.places, strict=True)
    ]
    contradicting, confirming = agreed.count(False), agreed.count(True)
    is_used = contradicting <= confirming if found.is_sure else contradicting == 0 < confirming
    return found if is_used else StepMatch([-1] * mine.size)


def _reference_of(history: DeviceHistory, step: I64) -> _Reference:
    return _Reference.of(history, history.lives.requested_bytes[step].tolist(), step, history.owners.stack_id[step])


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
