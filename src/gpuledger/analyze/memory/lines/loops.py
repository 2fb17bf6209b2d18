"""Loops of a program without steps: found where the source lines of its allocations repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuledger.analyze.memory.lifetimes import I64, allocated_curve, read_labels, read_lives, read_numbers
from gpuledger.analyze.memory.lines.source_lines import Stack, line_text, program_directory, read_stacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gpuledger.analyze.memory.lines.source_lines import Frame
    from gpuledger.model.run import Rank

FEWEST_ITERATIONS = 4
LEAST_SHARE = 0.5
"""A loop with a smaller share of the allocations is not the program's main loop."""
MOST_LEVELS = 24
_ONE_CALL = "backward", "optimizer"
"""Phases that are one call of the program."""
_CALL = "_call_impl"
"""The function of PyTorch that calls a module's forward."""


@dataclass(frozen=True)
class Loop:
    """The loop with most of the allocations.

    Attributes:
        line: ``file:line function`` of the first line that allocates in an iteration.
        iterations: Number of iterations.
        allocated_bytes: Bytes that an iteration allocates in total, median.
        peak_bytes: Highest allocated bytes of an iteration, the largest.
        peak_iteration: The iteration with this peak, from 1.
        iteration_ns: Time from one iteration to the next on the host, median; includes the overhead of recording.
    """

    line: str
    iterations: int
    allocated_bytes: int
    peak_bytes: int
    peak_iteration: int
    iteration_ns: float


@dataclass(frozen=True)
class _Allocations:
    """The allocations of one device in order."""

    index: I64
    t_ns: I64
    bytes: I64
    stack_id: I64


@dataclass(frozen=True)
class Iterations:
    """When the iterations of a loop begin, as indices of the allocator's events, and the loop itself.

    ``next`` is the index of the first allocation after the loop, None without one.
    ``is_in_module`` is whether a module calls the function with the loop, as for a loop over layers.
    """

    begins: I64
    next: int | None
    line: str
    is_in_module: bool


def find_iterations(rank: Rank, device_idx: int) -> Iterations | None:
    """Return the iterations of the loop that :func:`find_loop` returns."""
    hottest = _find(rank, device_idx)
    if hottest is None:
        return None
    found, starts, end, frame = hottest
    stacks = read_stacks(rank)
    outside = stacks[int(found.stack_id[starts[0]])]
    outside = outside[max(place for place, one in enumerate(outside) if one == frame) :]
    return Iterations(
        begins=found.index[starts],
        next=int(found.index[end]) if end < found.index.size else None,
        line=line_text(frame, program_directory(stacks.values())),
        is_in_module=any(one.framework and one.function == _CALL for one in outside),
    )


def find_loop(rank: Rank, device_idx: int) -> Loop | None:
    """Return the loop of the program's own code with most of the allocations; None if no line repeats.

    A function that returns to an earlier line has a loop, and each arrival at that line begins an iteration, also where
    the function enters the loop again. A loop with a body of one line is not found. The last iteration ends at the
    first allocation in a later line of the function, or outside of it.

    Source: stacks and times of the allocations; exact if every iteration allocates in two lines or more.
    """
    hottest = _find(rank, device_idx)
    if hottest is None:
        return None
    found, starts, end, frame = hottest
    directory = program_directory(read_stacks(rank).values())
    return _measured(rank, device_idx, found, np.append(starts, end), line_text(frame, directory))


def _find(rank: Rank, device_idx: int) -> tuple[_Allocations, I64, int, Frame] | None:
    """Return the allocations, the positions at which iterations begin, where the last ends, and the loop's frame."""
    found = _read(rank, device_idx)
    if found.index.size < FEWEST_ITERATIONS:
        return None
    starts, end, frame = _hottest(found, _own_frames(read_stacks(rank)))
    return None if frame is None else (found, starts, end, frame)


def _read(rank: Rank, device_idx: int) -> _Allocations:
    columns = [read_numbers(rank, "blocks", name, device_idx) for name in ("alloc_index", "alloc_ns", "stack_id")]
    columns.append(read_numbers(rank, "blocks", "requested_bytes", device_idx))
    index, t_ns, stack_id, size = columns
    order = np.argsort(index, kind="stable")
    order = order[(index[order] >= 0) & (stack_id[order] >= 0)]
    codes, phases = read_labels(rank, "blocks", "phase", device_idx)
    for phase in _ONE_CALL:
        if phase in phases:
            stack_id = _where_it_begins(stack_id, order, codes == phases.index(phase))
    return _Allocations(index[order], t_ns[order], size[order], stack_id[order])


def _where_it_begins(stack_id: I64, order: I64, is_inside: NDArray[np.bool_]) -> I64:
    """Return stacks in which all allocations of one call have that of its first one.

    Those of a backward pass have lines of forward, of which the program runs none again. Those of an optimizer's step
    are in its loop over the weights.
    """
    inside = is_inside[order]
    is_first = ~inside | ~np.concatenate(([False], inside[:-1]))
    found = stack_id.copy()
    found[order] = stack_id[order][np.maximum.accumulate(np.where(is_first, np.arange(order.size), 0))]
    return found


def _own_frames(stacks: Mapping[int, Stack]) -> dict[int, tuple[Frame, ...]]:
    """Return stack id -> frames of the program itself, outermost first."""
    return {number: tuple(frame for frame in reversed(stack) if frame.own) for number, stack in stacks.items()}


def _hottest(found: _Allocations, paths: Mapping[int, tuple[Frame, ...]]) -> tuple[I64, int, Frame | None]:
    """Return the positions at which iterations of the loop begin, where the last ends, and the frame of the loop."""
    best: tuple[float, I64, int, Frame | None] = (LEAST_SHARE * found.index.size, np.zeros(0, dtype=np.int64), 0, None)
    for level in range(min(MOST_LEVELS, max(map(len, paths.values()), default=0))):
        for starts, end, frame in _loops_at(found.stack_id, paths, level):
            allocations = end - int(starts[0])
            if starts.size >= FEWEST_ITERATIONS and allocations > best[0]:
                best = (allocations, starts, end, frame)
    return best[1:]


def _loops_at(stack_id: I64, paths: Mapping[int, tuple[Frame, ...]], level: int) -> list[tuple[I64, int, Frame]]:
    """Return the loops in the frames at one depth: where iterations begin, where the last ends, and the frame there."""
    callers: dict[tuple[object, ...], int] = {}
    count = int(stack_id.max()) + 1
    caller, line = np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for number, path in paths.items():
        if level < len(path) and number < count:
            frame = path[level]
            key = (path[:level], frame.file, frame.function)
            caller[number], line[number] = callers.setdefault(key, len(callers)), frame.line or 0
    changes = np.flatnonzero(np.diff(caller[stack_id], append=-2)) + 1
    places = np.flatnonzero(caller[stack_id] >= 0)
    places = places[np.argsort(caller[stack_id[places]], kind="stable")]
    group, lines = caller[stack_id[places]], line[stack_id[places]]
    returns = np.flatnonzero((group[1:] == group[:-1]) & (lines[1:] < lines[:-1])) + 1
    loops = []
    pairs, counts = np.unique(np.stack([group[returns], lines[returns]], axis=1), axis=0, return_counts=True)
    for one, header in pairs[counts >= FEWEST_ITERATIONS - 1].tolist():
        low, high = np.searchsorted(group, [one, one + 1])
        is_header = lines[low:high] == header
        starts = low + np.flatnonzero(is_header & ~np.concatenate(([False], is_header[:-1])))
        first, last = int(starts[0]), int(starts[-1])
        later = np.flatnonzero(lines[last:high] > lines[first : last + 1].max())
        left = int(changes[np.searchsorted(changes, places[last], side="right")])
        end = min(left, int(places[last + later[0]])) if later.size else left
        loops.append((places[starts], end, paths[int(stack_id[places[first]])][level]))
    return sorted(loops, key=lambda loop: (loop[2].file, loop[2].line or 0))


def _measured(rank: Rank, device_idx: int, found: _Allocations, edges: I64, line: str) -> Loop:
    """Return the loop with an iteration between each two of ``edges``."""
    starts = edges[:-1]
    totals = np.add.reduceat(found.bytes, starts)
    curve = allocated_curve(read_lives(rank, device_idx))
    ends = [*found.index[edges[1:-1]].tolist(), int(found.index[edges[-1] - 1]) + 1]
    peaks = []
    for begin, end in zip(found.index[starts].tolist(), ends, strict=True):
        low, high = np.searchsorted(curve.index, [begin, end])
        peaks.append(int(curve.bytes[low:high].max(initial=curve.at(begin))))
    return Loop(
        line=line,
        iterations=int(starts.size),
        allocated_bytes=int(np.median(totals[:-1])),
        peak_bytes=max(peaks),
        peak_iteration=int(np.argmax(peaks)) + 1,
        iteration_ns=float(np.median(np.diff(found.t_ns[starts]))),
    )
