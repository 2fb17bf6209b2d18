"""Profiled work as tracks: the spans of each stream or thread, and their modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.arrow_numbers import to_numbers

if TYPE_CHECKING:
    from gpuledger.model.run import Rank

I64 = NDArray[np.int64]
NOT_WORK = "phase"
HOST = "host"


@dataclass(frozen=True)
class StreamWork:
    """Spans of one stream of a device, or of one host thread, by start. They are nested or disjoint.

    ``stream`` is the thread's number on the host, -1 if unknown. ``lane`` is above 0 for spans that overlap others of
    the stream. ``kind`` and ``phase`` are texts, the other arrays int64[n], -1 for none.
    """

    device_idx: int
    stream: int
    on_host: bool
    lane: int
    kind: NDArray[np.object_]
    phase: NDArray[np.object_]
    name_id: I64
    operator_id: I64
    module_id: I64
    scope_id: I64
    step: I64
    start_ns: I64
    end_ns: I64


@dataclass(frozen=True)
class ModuleRange:
    """An interval in which a stream worked for one step, phase or module. ``depth`` counts from the step.

    ``module_id`` is -1 for a step and a phase, ``phase`` is "" for a step.
    """

    depth: int
    step: int
    phase: str
    module_id: int
    start_ns: int
    end_ns: int


def read_streams(rank: Rank) -> tuple[StreamWork, ...]:
    """Return the profiled work by device, stream and lane; empty without a timing measurement.

    Source: Kineto (CUPTI on a GPU).
    """
    names = ("device_idx", "stream", "name_id", "operator_id", "module_id", "scope_id", "step", "start_ns", "end_ns")
    table = rank.table("spans", (*names, "kind", "phase"))
    columns: dict[str, NDArray[Any]] = {name: to_numbers(table[name]) for name in names}
    for name in ("kind", "phase"):
        columns[name] = np.array(table[name].to_pylist(), dtype=object)
    chosen = np.flatnonzero(columns["kind"] != NOT_WORK)
    order = chosen[np.lexsort((-columns["end_ns"][chosen], columns["start_ns"][chosen]))]
    columns = {name: column[order] for name, column in columns.items()}
    device, stream, on_host = columns.pop("device_idx"), columns.pop("stream"), columns["kind"] == HOST
    tracks = sorted(set(zip(device.tolist(), on_host.tolist(), stream.tolist(), strict=True)))
    found: list[StreamWork] = []
    for one, host, number in tracks:
        mine = np.flatnonzero((device == one) & (on_host == host) & (stream == number))
        lanes = nested_lanes(columns["start_ns"][mine], columns["end_ns"][mine])
        for lane in range(int(lanes.max()) + 1):
            rows = mine[lanes == lane]
            found.append(StreamWork(one, number, host, lane, **{name: each[rows] for name, each in columns.items()}))
    return tuple(found)


def module_ranges(work: StreamWork, parents: dict[int, int]) -> list[ModuleRange]:
    """Return the steps, phases and modules that a stream worked for, nested, by start and depth.

    A range lasts from the first to the last of adjacent spans of one module. It is the time of the stream's work for
    the module, not the time that the host spent inside it. It ends at the latest when the next one begins.

    Args:
        work: One stream.
        parents: ``module_id`` -> id of its parent, -1 for an outermost module.
    """
    ranges: list[ModuleRange] = []
    opened: list[tuple[tuple[int, str, int], int]] = []
    latest_ns = 0
    chains: dict[tuple[int, str, int], list[tuple[int, str, int]]] = {}
    keys = zip(work.step.tolist(), work.phase.tolist(), work.module_id.tolist(), strict=True)
    for key, start_ns, end_ns in zip(keys, work.start_ns.tolist(), work.end_ns.tolist(), strict=True):
        chain = chains.get(key)
        if chain is None:
            chain = chains[key] = _chain(*key, parents)
        same = len(chain) if opened and opened[-1][0] == chain[-1] else _common(opened, chain)
        ranges += _closed(opened, same, min(latest_ns, start_ns))
        opened += [(part, start_ns) for part in chain[same:]]
        latest_ns = max(latest_ns, end_ns)
    ranges += _closed(opened, 0, latest_ns)
    return sorted(ranges, key=lambda one: (one.start_ns, one.depth))


def nested_lanes(start_ns: I64, end_ns: I64) -> I64:
    """Return a lane for each interval (sorted by start, then longest first): in it, intervals nest or are disjoint."""
    lanes = np.zeros(start_ns.size, dtype=np.int64)
    if not start_ns.size or (start_ns[1:] >= np.maximum.accumulate(end_ns)[:-1]).all():
        return lanes
    stacks: list[list[int]] = []
    for number, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        lanes[number] = _lane_for(stacks, start, end)
    return lanes


def _chain(step: int, phase: str, module_id: int, parents: dict[int, int]) -> list[tuple[int, str, int]]:
    """Return the keys from the step down to the module. A cycle of parents (a damaged table) is cut."""
    modules: list[int] = []
    at = module_id
    while at >= 0 and at not in modules:
        modules.append(at)
        at = parents.get(at, -1)
    return [(step, "", -1), (step, phase, -1), *((step, phase, module) for module in reversed(modules))]


def _common(opened: list[tuple[tuple[int, str, int], int]], chain: list[tuple[int, str, int]]) -> int:
    same = 0
    while same < min(len(opened), len(chain)) and opened[same][0] == chain[same]:
        same += 1
    return same


def _closed(opened: list[tuple[tuple[int, str, int], int]], keep: int, end_ns: int) -> Iterator[ModuleRange]:
    """Yield the ranges beyond the first ``keep``, and remove them from ``opened``."""
    while len(opened) > keep:
        (step, phase, module_id), start_ns = opened.pop()
        yield ModuleRange(len(opened), step, phase, module_id, start_ns, max(start_ns, end_ns))


def _lane_for(stacks: list[list[int]], start: int, end: int) -> int:
    """Return the first lane with room for this interval, and add the interval to it."""
    for lane, ends in enumerate(stacks):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or ends[-1] >= end:
            ends.append(end)
            return lane
    stacks.append([end])
    return len(stacks) - 1
