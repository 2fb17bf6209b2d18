"""Find the modules of code that Inductor has loaded from a cache without its nodes, from what the code itself says.

Comments in forward code name the nodes of the captured graph that a kernel computes, and Inductor's map of lines gives
the source lines of every statement, in backward as well. Dynamo captures the graph anew in every process. So a comment
leads to a node and its module. Source lines alone lead to a module if only one was called there. Of several, it is the
one that uses what the kernel reads, such as a weight, or for which it computes the gradient of a weight. Else it is
the module around all of them. In forward, the kernels that read a buffer come first: see :mod:`.buffer_values`. In
backward, a buffer of several possible modules that one module reads is the gradient of that module's output.
Comments in backward code name its own nodes, which can have the same names as others in forward.

The entries of AOTAutograd's cache have the graphs as text, with the source line of each node, but without its module
(torch 2.13). So they do not tell two calls of one line apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from gpuledger.collect.adapter.compiler.data_flow import DataFlow, is_of_backward
from gpuledger.collect.adapter.compiler.generated_code import Statement
from gpuledger.collect.adapter.compiler.graph_nodes import (
    NOWHERE,
    CapturedGraph,
    CompiledGraph,
    Frames,
    Kernel,
    NodeOrigin,
    common_path,
)
from gpuledger.collect.adapter.compiler.inductor import frames_at, source_lines
from gpuledger.model.journal.journal import FOUND_BY_LINES

_NODES = re.compile(r"# Topologically Sorted Source Nodes: \[([^\]]*)\]")


def find_modules(
    graph: CompiledGraph, statements: Iterable[Statement], text: str, captured: Iterable[CapturedGraph]
) -> CompiledGraph | None:
    """Return a graph with the places of its kernels and buffers; None if no captured graph fits.

    Args:
        graph: The graph as it was loaded.
        statements: Those of all functions of its file.
        text: The content of its file.
        captured: The graphs that Dynamo captured, the last one first.
    """
    statements = list(statements)
    kernels = [one for one in statements if one.kernel]
    is_backward = is_of_backward(text)
    names = {} if is_backward else _names_before(kernels, text)
    lines = source_lines(graph.file)
    traces = {one.line: frames_at(lines, one.line) for one in kernels}
    for one in captured:
        by_frames = _by_frames(one)
        known = _by_name(one)
        if any(name in known for found in names.values() for name in found) or any(
            frames in by_frames for frames in traces.values() if frames
        ):
            flow = DataFlow(one, text, is_backward=is_backward)
            traced = {line: by_frames.get(frames, []) for line, frames in traces.items()}
            return _with_places(graph, statements, one, names, traced, flow)
    return None


def _names_before(kernels: list[Statement], text: str) -> dict[int, list[str]]:
    """Return ``line of a kernel's call -> names`` in the comment between it and the call before."""
    rows = text.splitlines()
    found: dict[int, list[str]] = {}
    before = min((one.line for one in kernels), default=1) - 8
    for one in kernels:
        for row in rows[max(before, 0) : one.line - 1]:
            match = _NODES.search(row)
            if match:
                found[one.line] = [name.strip() for name in match.group(1).split(",") if name.strip()]
        before = one.line
    return found


def _by_frames(captured: CapturedGraph) -> dict[Frames, list[NodeOrigin]]:
    found: dict[Frames, list[NodeOrigin]] = {}
    for place in captured.nodes.values():
        if place.frames:
            found.setdefault(place.frames, []).append(place)
    return found


def _by_name(captured: CapturedGraph) -> dict[str, list[NodeOrigin]]:
    """Return the places of each name. Nodes of several bodies can have one name."""
    found: dict[str, list[NodeOrigin]] = {}
    for name, place in captured.nodes.items():
        found.setdefault(name.rpartition("/")[2], []).append(place)
    return found


def _with_places(
    graph: CompiledGraph,
    statements: list[Statement],
    captured: CapturedGraph,
    names: dict[int, list[str]],
    traced: dict[int, list[NodeOrigin]],
    flow: DataFlow,
) -> CompiledGraph:
    by_name = _by_name(captured)
    order = {name: number for number, name in enumerate(by_name)}
    known_at = {line: sorted(order.keys() & found, key=order.__getitem__) for line, found in names.items()}
    found_values = flow.find_values(statements, {line: known[-1] for line, known in known_at.items() if known})
    flow.keep_returned(found_values)
    values, computed = found_values
    first_names = _first_names(statements)
    made: dict[str, NodeOrigin] = {}
    unclear: dict[str, list[NodeOrigin]] = {}
    assigned: set[str] = set()
    found: list[Kernel] = []
    for one in statements:
        assigned.add(one.assigns)
        if not one.kernel:
            continue
        known = known_at.get(one.line, [])
        outputs = tuple(name for name in one.names if name.startswith("buf") and name not in assigned | made.keys())
        possible = flow.narrowed(by_name[known[-1]] if known else traced[one.line], one.names, outputs)
        inferred = {name: captured.nodes[values[name]] for name in outputs if name in values}
        last = max({computed[name] for name in inferred} - {""}, key=order.__getitem__, default="")
        of_copies = {inferred[name] for name in inferred if computed[name] != values[name]}
        is_clear = known or not last or (len(set(possible)) == 1 and of_copies.isdisjoint(possible))
        place = common_place(possible) if is_clear else captured.nodes[last]
        made.update({name: inferred.get(name) or flow.of_gradient(name) or place for name in outputs})
        if len(set(possible)) == 1:
            for name in unclear.keys() & set(one.names):
                before = flow.before(place)
                made[name] = before if before in unclear.pop(name) else made[name]
        elif is_clear:
            unclear |= {name: possible for name in outputs if name not in inferred and not flow.of_gradient(name)}
        for name in first_names.keys() & set(outputs):
            made[first_names[name]] = flow.before(made[name]) or made[name]
        if known and len(outputs) == 1:
            flow.made(outputs[0], known[-1])
        written = outputs or one.names[-1:]
        found.append(Kernel(outputs, () if outputs else written, tuple(known), ((place, 0),)))
    has_modules = any(place.module_key or place.path for place in captured.nodes.values())
    return replace(graph, buffers=made, kernels=found, unknown=FOUND_BY_LINES if has_modules else "")


def _first_names(statements: list[Statement]) -> dict[str, str]:
    """Return the names under which kernels get buffers, if the buffers were allocated under others.

    The kernel that makes such a buffer has computed another value in the same memory before.
    """
    found: dict[str, str] = {}
    used = {name for one in statements if one.kernel for name in one.names}
    allocated = {one.allocates for one in statements if one.allocates} - used
    for one in statements:
        if one.renames is not None and one.renames[0] in allocated:
            found[one.renames[1]] = one.renames[0]
    return found


def common_place(places: list[NodeOrigin]) -> NodeOrigin:
    """Return the place that all of some places have, or the module around them."""
    if not places:
        return NOWHERE
    if len(set(places)) == 1:
        return places[0]
    path = common_path(place.path for place in places)
    same = next((place for place in places if place.path == path), None)
    frames = places[0].frames if len({place.frames for place in places}) == 1 else ()
    keys = {place.module_key for place in places}
    return same if same is not None else NodeOrigin(0, path, "", frames, () if 0 in keys else tuple(sorted(keys)))
