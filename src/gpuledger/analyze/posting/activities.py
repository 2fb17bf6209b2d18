"""Attribute profiled time: each kernel, copy and outermost operator gets a module, a scope, a phase and a step.

A kernel belongs to the operator that launched it. An operator belongs to the innermost module range around it. In
backward, it belongs to the module with the forward that created the running graph node. The two are matched by
autograd's sequence number. Gradient accumulation has no sequence number and belongs with the node before it. Operators
that follow a forward outside all modules and keep a graph, such as a loss, count as forward. A model called without
gradients counts as evaluation, as in the memory recording.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.module_paths import CompiledKernels
from gpuledger.analyze.posting.graph_replays import match_captures, match_replays, measured_parents, with_captures
from gpuledger.analyze.posting.host_events import (
    EarlierCalls,
    nodes_from_before,
    rows_around_calls,
    with_node_sequences,
)
from gpuledger.analyze.posting.kernels_alone import with_later_steps
from gpuledger.analyze.posting.lane_scopes import NONE, EventNames, LaneScopes, read_names
from gpuledger.analyze.posting.launch_lines import place_lines
from gpuledger.analyze.posting.launched_work import SpanWork, launchers, span_work
from gpuledger.model.accounts import SPAN_KINDS, Phase
from gpuledger.model.journal.journal import (
    ActivityKind,
)
from gpuledger.model.journal.reading import Journal

I64 = NDArray[np.int64]

_COLLECTIVES = ("ncclDevKernel", "ncclKernel")


@dataclass(frozen=True)
class OwnedSpans:
    """Columns with one entry per span. ``kind`` is a position in SPAN_KINDS, names are ids of activity names; -1: none.

    ``operator_id`` is the name of the launching operator, or of the span itself if it is an operator; never of a range
    that gpuledger has opened. ``launched_ns`` is the start of its launch, -1 if not recorded. ``fusion_id`` is the
    compiled kernel around the launch; ``module_id`` is then the module that was called (:mod:`.fused_work`).
    ``is_replayed`` is True for kernels launched by a CUDA graph, and ``is_matched`` if they were found in compiled
    code or in their capture. ``stack_id`` is the Python stack of the call that
    launched it.
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
    scope_id: I64
    launched_ns: I64
    work: SpanWork
    fusion_id: I64
    is_replayed: NDArray[np.bool_]
    is_matched: NDArray[np.bool_]
    stack_id: I64


@dataclass(frozen=True)
class _Owners:
    """Owner of each host activity. ``outermost`` is True for operators that are inside no other operator.

    It is False for the compiler's events. What they contain runs once, on fake tensors. It is also False for an
    operator that calls modules: what it contains counts.

    ``parent`` is the row of the enclosing event; -1 if there is none.
    """

    module: I64
    phase: I64
    scope: I64
    outermost: NDArray[np.bool_]
    parent: I64
    fusion: I64


class _Launchers(NamedTuple):
    """What has launched each span: rows of host activities, which mean nothing where a span has none.

    ``at`` is the operator that launched it, ``operator`` the one in the capture if there is one, and ``owner`` the one
    of these that has a module or a phase.
    """

    is_placed: NDArray[np.bool_]
    at: I64
    is_owned: NDArray[np.bool_]
    operator: I64
    owner: I64


class _Event(NamedTuple):
    """One host event. ``made_by`` is the thread with the operator that created its graph node; 0 for none."""

    row: int
    begin_ns: int
    end_ns: int
    lane: int
    name_id: int
    sequence: int
    made_by: int


@dataclass
class _Around:
    """The state inside a host event: its end, and its owner."""

    end_ns: int
    module_id: int
    phase: int
    in_node: bool
    is_operator: bool
    is_node: bool = False
    row: int = -1
    fusion: int = -1


def own_spans(journal: Journal) -> OwnedSpans | None:
    """Return the spans of the profiled steps with their owners; None without a timing measurement.

    If there are kernels, the spans are those of the device. Otherwise they are the outermost host operators.

    Source: Kineto (CUPTI on a GPU); times are Unix ns.
    """
    measured_count = journal.tables["activities"]["kind"].size
    if not measured_count:
        return None
    captures = with_captures(journal)
    table, words = with_node_sequences(captures.table, captures.words), captures.words
    own = {name: values[:measured_count] for name, values in table.items()}
    names = read_names(words)
    compiled = CompiledKernels(journal.modules, journal.facts.get("fusions") or [])
    of_all = bool(journal.facts.get("times_of_all_threads"))
    earlier = EarlierCalls(own, np.array(names.earlier) >= 0)
    walk = _Walk(table, names, journal.names, compiled, {}, earlier, of_all_threads=of_all)
    owners, before = walk.owners(), nodes_from_before(table, words)
    pattern_ns = (journal.facts.get("line_step") or {}).get("from_ns")
    in_backward = owners.phase[:measured_count] == int(Phase.BACKWARD)
    steps = steps_at(journal, own["start_ns"])
    lines, divided = place_lines(
        own, words, measured_parents(owners.parent, measured_count), in_backward, steps, pattern_ns
    )
    on_device = table["kind"] != ActivityKind.HOST
    divided = set() if on_device.any() else divided  # a kernel has its own operator
    if before or divided:
        made = walk.made_like(before)
        walk = _Walk(table, names, journal.names, compiled, made, earlier, of_all_threads=of_all)
        owners = walk.owners(divided)
    is_measured = np.arange(on_device.size) < measured_count
    is_measured &= (pattern_ns is None) | (table["start_ns"] < (pattern_ns or 0))
    chosen = np.flatnonzero(is_measured & (on_device if on_device.any() else owners.outermost))
    launch = launchers(table, chosen) if on_device.any() else chosen
    found = with_later_steps(journal, table, chosen, launch)
    chosen, like, steps_later = found.rows, found.like, found.steps_later
    launch = launchers(table, like) if on_device.any() else like
    replayed = match_replays(table, like, words, journal.facts.get("fusions") or [])[like]
    captured = match_captures(captures, like, owners.parent)[like]
    placed, at, is_owned, operator, owner = _launchers_of(owners, launch, captured)
    start = table["start_ns"][chosen]
    began_ns = np.where(placed, table["start_ns"][at], table["start_ns"][like])
    step = np.where(began_ns < (journal.facts.get("times_from_ns") or 0), 0, steps_at(journal, began_ns))
    parent = measured_parents(owners.parent, measured_count)
    return OwnedSpans(
        kind=_kinds_of(table, chosen, words),
        device_idx=table["device_idx"][chosen].astype(np.int64),
        stream=table["lane"][chosen],
        name_id=table["name_id"][chosen].astype(np.int64),
        start_ns=start,
        end_ns=start + table["duration_ns"][chosen],
        module_id=np.where(is_owned, owners.module[owner], -1),
        phase=np.where(is_owned, owners.phase[owner], int(Phase.BETWEEN)).astype(np.int8),
        step=np.where(step > 0, step + steps_later, 0),
        operator_id=np.where(
            is_owned & ~names.is_ours[table["name_id"][operator]], table["name_id"][operator], -1
        ).astype(np.int64),
        scope_id=np.where(is_owned, owners.scope[owner], NONE),
        launched_ns=np.where(placed & (steps_later == 0), table["start_ns"][at], -1),
        work=span_work(own, journal.facts, chosen, launch, parent, steps_later),
        fusion_id=np.where(replayed >= 0, replayed, np.where(placed, owners.fusion[at], -1)),
        is_replayed=table["launch_id"][like] < 0,
        is_matched=(replayed >= 0) | (captured >= 0),
        stack_id=np.where(placed, lines[at], -1),
    )


def _launchers_of(owners: _Owners, launch: I64, captured: I64) -> _Launchers:
    """Return what has launched each span, from the operators that launched and captured it; -1 for none."""
    placed = launch >= 0
    is_captured = captured >= 0
    at = np.where(placed, launch, 0)
    operator = np.where(is_captured, captured, at)
    # A capture outside of modules and phases, as in compiled code, runs where it is replayed.
    is_nowhere = (owners.module[operator] < 0) & (owners.phase[operator] == int(Phase.BETWEEN))
    owner = np.where(is_nowhere & placed, at, operator)
    return _Launchers(placed, at, placed | is_captured, operator, owner)


def _kinds_of(table: dict[str, NDArray[Any]], chosen: I64, words: list[str]) -> NDArray[np.int8]:
    """Return the kinds of the chosen activities, as positions in SPAN_KINDS."""
    kind = np.where(table["kind"][chosen] == ActivityKind.KERNEL, SPAN_KINDS.index("kernel"), SPAN_KINDS.index("copy"))
    collective = np.array([name.startswith(_COLLECTIVES) for name in words], dtype=bool)
    kind[collective[table["name_id"][chosen]]] = SPAN_KINDS.index("collective")
    kind[table["kind"][chosen] == ActivityKind.HOST] = SPAN_KINDS.index("host")
    return kind.astype(np.int8)


_Made = dict[tuple[int, int], tuple[int, int]]
"""Thread and sequence number of a node -> module and scope in which it was created."""


class _Walk:
    """Processes the host events of all threads in order of time, and finds the owner of each."""

    def __init__(
        self,
        table: dict[str, NDArray[Any]],
        names: EventNames,
        scopes: list[str],
        compiled: CompiledKernels,
        made: _Made,
        earlier: EarlierCalls,
        *,
        of_all_threads: bool,
    ) -> None:
        count = table["kind"].size
        self._of_all_threads = of_all_threads
        self._table, self._names, self._compiled, self._earlier = table, names, compiled, earlier
        self._scopes = LaneScopes(scopes)
        self._stacks: dict[int, list[_Around]] = {}
        self._made = made
        self._last_module: dict[int, int] = {}
        self._in_forward: set[int] = set()
        self._callers: set[int] = set()
        self._found = _Owners(
            module=np.full(count, -1, dtype=np.int64),
            phase=np.full(count, int(Phase.BETWEEN), dtype=np.int64),
            scope=np.full(count, NONE, dtype=np.int64),
            outermost=np.zeros(count, dtype=bool),
            parent=np.full(count, -1, dtype=np.int64),
            fusion=np.full(count, -1, dtype=np.int64),
        )

    def owners(self, divided: Iterable[int] = ()) -> _Owners:
        """Return the owner of each event. The rows ``divided`` are none themselves, but the events inside them."""
        table = self._table
        host = np.flatnonzero(table["kind"] == ActivityKind.HOST)
        end = table["start_ns"] + table["duration_ns"]
        order = host[np.lexsort((-end[host], table["start_ns"][host]))]
        columns = (table["start_ns"], end, *(table[name] for name in ("lane", "name_id", "sequence", "forward_lane")))
        values = zip(order.tolist(), *(column[order].tolist() for column in columns), strict=True)
        events = [_Event(*one) for one in values]
        names = self._names
        calls = zip(names.module, names.phase, strict=True)
        is_call = [module >= 0 or phase == Phase.OPTIMIZER for module, phase in calls]
        self._callers = rows_around_calls((one[:5] for one in events), is_call) | set(divided)
        for event in events:
            around = self._around(event)
            mark = self._names.mark[event.name_id]
            if mark is None:
                self._place(event, around)
            else:
                self._scopes.mark(event.lane, mark, in_backward=around.phase == Phase.BACKWARD)
        return self._found

    def made_like(self, before: dict[tuple[int, int], int]) -> _Made:
        """Return where nodes from before the profile were created: as their equivalents (:func:`nodes_from_before`)."""
        return {
            (lane, node): self._made[lane, like] for (lane, node), like in before.items() if (lane, like) in self._made
        }

    def _around(self, event: _Event) -> _Around:
        """Return the state around an event, after removing events that have ended."""
        stack = self._stacks.setdefault(event.lane, [])
        while stack and stack[-1].end_ns <= event.begin_ns:
            if stack.pop().is_node:
                self._scopes.node_ends(event.lane)
        if stack:
            return stack[-1]
        name_id = self._earlier.at(event.row, event.lane, event.begin_ns)
        phase = Phase.BETWEEN if name_id < 0 else self._names.of_call[name_id]
        return _Around(0, -1 if name_id < 0 else self._names.earlier[name_id], int(phase), False, False)

    def _place(self, event: _Event, around: _Around) -> None:
        names, name_id, found = self._names, event.name_id, self._found
        counts = event.row not in self._callers
        is_inside = counts or around.is_operator
        now = _Around(event.end_ns, around.module_id, around.phase, around.in_node, is_inside, row=event.row)
        now.fusion = around.fusion
        if names.is_node[name_id]:
            self._begin_node(event, now)
            found.outermost[event.row] = counts and not around.is_operator
        elif names.module[name_id] >= 0:
            now.module_id, now.in_node, now.is_operator = names.module[name_id], False, around.is_operator
            now.fusion = -1
            if around.phase in (Phase.BETWEEN, Phase.OPTIMIZER):
                now.phase = int(names.of_call[name_id])
                (self._in_forward.add if now.phase == Phase.FORWARD else self._in_forward.discard)(event.lane)
        elif names.fusion[name_id] >= 0:
            now.fusion, now.is_operator = names.fusion[name_id], True
            self._begin_compiled(event, now, around)
        elif names.phase[name_id] >= 0:
            now.phase, now.is_operator = names.phase[name_id], around.is_operator
            self._in_forward.discard(event.lane)
            if now.phase == Phase.OPTIMIZER:
                now.module_id = -1
            elif now.phase == Phase.BACKWARD:
                self._scopes.backward_begins(event.lane, event.end_ns)
        elif names.is_line[name_id]:
            now.is_operator = around.is_operator
        else:
            found.outermost[event.row] = counts and not (around.is_operator or names.is_compiler[name_id])
            if names.is_compiler[name_id]:
                self._leave_out_compiler(around.row)
            awaits_backward = event.sequence >= 0 and event.lane in self._in_forward
            if awaits_backward and now.phase in (Phase.BETWEEN, Phase.OPTIMIZER):
                now.phase = int(Phase.FORWARD)
        self._note_made(event, now)
        found.module[event.row], found.phase[event.row] = now.module_id, now.phase
        found.parent[event.row], found.fusion[event.row] = around.row, now.fusion
        found.scope[event.row] = self._scopes.at_work(event.lane)
        self._stacks[event.lane].append(now)

    def _begin_compiled(self, event: _Event, now: _Around, around: _Around) -> None:
        """Give a compiled kernel a module and a phase: those of the call, or of modules that nothing has called."""
        if around.fusion >= 0:
            now.module_id = self._compiled.of(around.fusion, around.module_id)
        elif now.phase in (Phase.BETWEEN, Phase.OPTIMIZER) and self._compiled.computes_modules(now.fusion):
            now.phase = int(Phase.FORWARD)
            self._in_forward.add(event.lane)
        elif now.phase == Phase.BETWEEN and self._compiled.is_in_optimizer(now.fusion):
            now.phase = int(Phase.OPTIMIZER)
        self._stand_for_surroundings(event.row, around.row)

    def _stand_for_surroundings(self, row: int, parent: int) -> None:
        """Count a compiled kernel as an outermost operator, and none of the events around it."""
        self._found.outermost[row] = True
        while parent >= 0:
            self._found.outermost[parent] = False
            parent = int(self._found.parent[parent])

    def _leave_out_compiler(self, row: int) -> None:
        """Count none of the compiler's events around one of them as an outermost operator."""
        while row >= 0 and not self._names.is_operator[int(self._table["name_id"][row])]:
            self._found.outermost[row] = False
            row = int(self._found.parent[row])

    def _begin_node(self, event: _Event, now: _Around) -> None:
        """Attribute a node to the module that created it in forward; without a sequence number, as the node before."""
        lane = event.lane
        if event.sequence >= 0:
            is_known = self._of_all_threads or event.made_by in self._stacks
            maker = event.made_by if is_known else 0
            module_id, scope = self._made.get((maker, event.sequence), (-1, NONE))
            self._last_module[lane] = module_id
            self._scopes.node_begins(lane, event.begin_ns, scope)
        else:
            self._scopes.node_begins(lane, event.begin_ns, None)
        now.module_id = self._last_module.get(lane, -1)
        now.phase, now.in_node, now.is_node = int(Phase.BACKWARD), True, True

    def _note_made(self, event: _Event, now: _Around) -> None:
        """Store where an operator ran that has the thread's current sequence number.

        The last one with a number creates the node. A node that another node's backward creates (``create_graph``) has
        the module of that node. Also stored under thread 0, for nodes with an unknown creating thread.
        """
        lane, sequence = event.lane, event.sequence
        if sequence < 0 or event.made_by or now.is_node:
            return
        if not now.in_node:
            self._made[lane, sequence] = self._made[0, sequence] = now.module_id, self._scopes.at_work(lane)
        else:
            again = self._scopes.computes_again(lane)
            self._made[lane, sequence] = now.module_id, self._scopes.at_work(lane) if again else NONE


def steps_at(journal: Journal, at_ns: I64) -> I64:
    """Return the number of the step at each time; 0 outside all steps."""
    steps = journal.tables["steps"]
    order = np.argsort(steps["start_ns"], kind="stable")
    if not order.size:
        return np.zeros(at_ns.size, dtype=np.int64)
    starts, ends, numbers = (steps[name][order] for name in ("start_ns", "end_ns", "step"))
    place = np.clip(np.searchsorted(starts, at_ns, side="right") - 1, 0, None)
    inside = (starts[place] <= at_ns) & (at_ns < ends[place])
    return np.where(inside, numbers[place], 0).astype(np.int64)
