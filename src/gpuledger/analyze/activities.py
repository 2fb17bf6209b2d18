"""Whose time it is: each kernel, copy and outermost operator of the time pass gets a module, a phase and a step.

A kernel belongs to the operator that launched it. An operator belongs to the innermost module range around it; in
backward to the module whose forward made the graph node that is being evaluated, known by autograd's sequence number.
A gradient's accumulation has no number of its own and goes with the node before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuledger.model.accounts import Phase
from gpuledger.model.journal import MODULE_RANGE, PHASE_RANGE, ActivityKind, Journal

I64 = NDArray[np.int64]

SPAN_KINDS = ("phase", "kernel", "copy", "collective", "host")
"""Kinds of spans; the number is the position."""

_NODE = "autograd::engine::evaluate_function: "
_COLLECTIVES = ("ncclDevKernel", "ncclKernel")


@dataclass(frozen=True)
class OwnedSpans:
    """One entry per span: ``kind`` in SPAN_KINDS, names in the activities' own; -1 stands for none.

    ``operator_id`` is the name of the operator that launched it, or that it is.
    """

    kind: NDArray[np.int8]
    device_idx: I64
    stream: I64
    name_id: I64
    start_ns: I64
    end_ns: I64
    module_id: I64
    phase: NDArray[np.int8]
    step: I64
    operator_id: I64


@dataclass(frozen=True)
class _Names:
    """What each name of an activity means."""

    module: list[int]
    phase: list[int]
    is_node: list[bool]


@dataclass
class _Around:
    """What a host event has around it, itself included: its end, and whose it is."""

    end_ns: int
    module_id: int
    phase: int
    in_node: bool
    is_operator: bool


def own_spans(journal: Journal) -> OwnedSpans | None:
    """Return the spans of the time pass with their owners; None where there was none.

    Where there are kernels, the spans are those of the device; else the outermost operators of the host.

    Source: Kineto (CUPTI on a card); times are Unix ns.
    """
    table = journal.tables["activities"]
    if not table["kind"].size:
        return None
    words = [str(name) for name in journal.facts.get("activity_names") or []]
    owner, outermost = _host_owners(table, _read_names(words))
    on_device = table["kind"] != ActivityKind.HOST
    chosen = np.flatnonzero(on_device if on_device.any() else outermost)
    launch = _launchers(table, chosen) if on_device.any() else chosen
    placed = launch >= 0
    at = np.where(placed, launch, 0)
    kind = np.where(table["kind"][chosen] == ActivityKind.KERNEL, SPAN_KINDS.index("kernel"), SPAN_KINDS.index("copy"))
    collective = np.array([name.startswith(_COLLECTIVES) for name in words], dtype=bool)
    kind[collective[table["name_id"][chosen]]] = SPAN_KINDS.index("collective")
    start = table["start_ns"][chosen]
    return OwnedSpans(
        kind=(kind if on_device.any() else np.full(chosen.size, SPAN_KINDS.index("host"))).astype(np.int8),
        device_idx=table["device_idx"][chosen].astype(np.int64),
        stream=table["lane"][chosen],
        name_id=table["name_id"][chosen].astype(np.int64),
        start_ns=start,
        end_ns=start + table["duration_ns"][chosen],
        module_id=np.where(placed, owner[0][at], -1),
        phase=np.where(placed, owner[1][at], int(Phase.BETWEEN)).astype(np.int8),
        step=_steps_at(journal, np.where(placed, table["start_ns"][at], start)),
        operator_id=np.where(placed, table["name_id"][at], -1).astype(np.int64),
    )


def _read_names(words: list[str]) -> _Names:
    return _Names(
        module=[int(word.removeprefix(MODULE_RANGE)) if word.startswith(MODULE_RANGE) else -1 for word in words],
        phase=[int(word.removeprefix(PHASE_RANGE)) if word.startswith(PHASE_RANGE) else -1 for word in words],
        is_node=[word.startswith(_NODE) for word in words],
    )


def _host_owners(table: dict[str, NDArray[Any]], names: _Names) -> tuple[tuple[I64, I64], NDArray[np.bool_]]:
    """Return module and phase of every host event, and which of them are outermost operators."""
    count = table["kind"].size
    module, phase = np.full(count, -1, dtype=np.int64), np.full(count, int(Phase.BETWEEN), dtype=np.int64)
    outermost = np.zeros(count, dtype=bool)
    host = np.flatnonzero(table["kind"] == ActivityKind.HOST)
    end = table["start_ns"] + table["duration_ns"]
    order = host[np.lexsort((-end[host], table["start_ns"][host]))]
    starts, ends, lanes, name_ids, sequences = (
        column[order].tolist()
        for column in (table["start_ns"], end, table["lane"], table["name_id"], table["sequence"])
    )
    stacks: dict[int, list[_Around]] = {}
    module_of_node: dict[int, int] = {}
    last_module: dict[int, int] = {}
    for row, begin, stop, lane, name_id, sequence in zip(
        order.tolist(), starts, ends, lanes, name_ids, sequences, strict=True
    ):
        stack = stacks.setdefault(lane, [])
        while stack and stack[-1].end_ns <= begin:
            stack.pop()
        around = stack[-1] if stack else _Around(0, -1, int(Phase.BETWEEN), False, False)
        now = _Around(stop, around.module_id, around.phase, around.in_node, True)
        if names.is_node[name_id]:
            found = module_of_node.get(sequence) if sequence >= 0 else last_module.get(lane)
            now.module_id = last_module[lane] = -1 if found is None else found
            now.phase, now.in_node = int(Phase.BACKWARD), True
            outermost[row] = not around.is_operator
        elif names.module[name_id] >= 0:
            now.module_id, now.in_node, now.is_operator = names.module[name_id], False, around.is_operator
            if around.phase not in (Phase.BACKWARD, Phase.OPTIMIZER):
                now.phase = int(Phase.FORWARD)
        elif names.phase[name_id] >= 0:
            now.phase, now.is_operator = names.phase[name_id], around.is_operator
            if now.phase == Phase.OPTIMIZER:
                now.module_id = -1
        else:
            outermost[row] = not around.is_operator
        if sequence >= 0 and not now.in_node:
            module_of_node[sequence] = now.module_id
        module[row], phase[row] = now.module_id, now.phase
        stack.append(now)
    return (module, phase), outermost


def _launchers(table: dict[str, NDArray[Any]], chosen: I64) -> I64:
    """Return the row of the host event that launched each of the ``chosen`` device events; -1 where none is known."""
    host = np.flatnonzero(table["kind"] == ActivityKind.HOST)
    if not host.size:
        return np.full(chosen.size, -1, dtype=np.int64)
    order = host[np.argsort(table["launch_id"][host], kind="stable")]
    known = table["launch_id"][order]
    wanted = table["launch_id"][chosen]
    place = np.clip(np.searchsorted(known, wanted), 0, known.size - 1)
    return np.where((known[place] == wanted) & (wanted > 0), order[place], -1)


def _steps_at(journal: Journal, at_ns: I64) -> I64:
    """Return the number of the step under way at each time; 0 outside every step."""
    steps = journal.tables["steps"]
    order = np.argsort(steps["start_ns"], kind="stable")
    if not order.size:
        return np.zeros(at_ns.size, dtype=np.int64)
    starts, ends, numbers = (steps[name][order] for name in ("start_ns", "end_ns", "step"))
    place = np.clip(np.searchsorted(starts, at_ns, side="right") - 1, 0, None)
    inside = (starts[place] <= at_ns) & (at_ns < ends[place])
    return np.where(inside, numbers[place], 0).astype(np.int64)
