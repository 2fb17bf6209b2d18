"""Watch TorchInductor: which graphs it compiles or loads from its cache, and what Dynamo has captured.

Nothing of the compiler is changed: two functions are observed, and the graph that one of them has just compiled is
read. So the generated code, its cache keys and the number of compilations are those of a run without gpuledger. Tested
with torch 2.11 and torch 2.13.
"""

from __future__ import annotations

import bisect
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from math import prod
from types import ModuleType
from typing import Any

import torch

from gpuledger.collect.adapter.compiler.compiled_autograd import AutogradWatch
from gpuledger.collect.adapter.compiler.graph_nodes import (
    CapturedGraph,
    CompiledGraph,
    Frames,
    NodeOrigin,
    TensorKind,
    parse_trace,
    place_in_stack,
    place_of_node,
    read_graph,
)
from gpuledger.collect.adapter.compiler.graph_operations import flow_of
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation
from gpuledger.collect.adapter.observer import Observer
from gpuledger.model.journal.journal import CACHED_CODE, WITHOUT_MODULES

CAPTURED = 256
"""Number of captured graphs that are kept."""

_COMPILER, _CODE_CACHE = "torch._inductor.graph", "torch._inductor.codecache"
_AUTOGRAD_TRACER = "torch._functorch.aot_autograd"

LOST_WITHOUT = {
    "torch._TorchCompileInductorWrapper.__call__": "compiled regions are not divided among their modules",
    "GraphLowering.compile_to_module": "newly compiled regions are not divided among their modules",
    "PyCodeCache.load_by_key_path": "compiled regions from a cache are not divided among their modules",
}
"""Private functions of Inductor in use -> what does not work if the function is missing."""


class CompilerWatch:
    """Calls ``compiled(graph)`` for every graph that Inductor compiles or loads from its cache.

    Args:
        compiled: Receives the graph; raises only what ``absorbs`` handles.
        absorbs: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, compiled: Callable[[CompiledGraph], None], absorbs: Callable[[BaseException], bool]) -> None:
        self.lost: list[str] = []
        """Entries of :data:`LOST_WITHOUT` that this torch does not have."""
        self._compiled = compiled
        self._absorbs = absorbs
        self._observations: list[Observation] = []
        self.captured: deque[CapturedGraph] = deque(maxlen=CAPTURED)
        """The graphs that Dynamo captured, the last one first."""
        self.autograd = AutogradWatch(self._observe_if_there)
        self._watches_graphs = self._waits = False
        self._compiling = self._lowering = 0
        self._seen: set[int] = set()

    @property
    def possible(self) -> tuple[CapturedGraph, ...]:
        """Return the graphs that generated code can be of: the one that is being compiled, else all.

        A backward graph can be compiled later than its forward.
        """
        return tuple(self.captured) if self.being_compiled is None else (self.being_compiled,)

    @property
    def being_compiled(self) -> CapturedGraph | None:
        """Return the graph that is being compiled; None if none is."""
        return self.captured[0] if self._compiling else None

    def install(self) -> None:
        """Observe the compiler, which the program need not have imported yet."""
        wrapper = vars(getattr(torch, "_TorchCompileInductorWrapper", object)).get("__call__")
        name = "torch._TorchCompileInductorWrapper.__call__"
        self._observe(name, wrapper, self._enter_compile, self._leave_compile, self._fail_compile)
        backend = vars(getattr(torch, "_TorchCompileWrapper", object)).get("__call__")
        self._observe_if_there(backend, self._enter_backend, self._leave_compile, self._fail_compile)
        if _COMPILER in sys.modules:
            self._watch_graphs()
            self.look_for_loaded()

    def remove(self) -> None:
        """Stop observing."""
        while self._observations:
            self._observations[-1].remove()
            self._observations.pop()

    def _observe_if_there(self, function: Any, *callbacks: Callable[..., Any]) -> None:
        """Observe a function that only some programs need, if this torch has it."""
        with suppress(CannotInstrumentError):
            if function is not None:
                self._observations.append(Observation(function, Observer(*callbacks, absorbs=self._absorbs)))

    def _observe(
        self,
        name: str,
        function: Any,
        enter: Callable[..., Any],
        leave: Callable[[Any, Any], None],
        fail: Callable[[Any], None] = lambda _token: None,
    ) -> None:
        try:
            if function is None:
                raise CannotInstrumentError(f"torch {torch.__version__} has no {name}")
            self._observations.append(Observation(function, Observer(enter, leave, fail, absorbs=self._absorbs)))
        except CannotInstrumentError:
            self.lost.append(name)

    def _enter_compile(self, _compiler: Any, captured: Any, *_: Any) -> bool:
        """Watch the compiler's own functions. It is about to be imported, if it was not yet."""
        if not self._watches_graphs:
            import_module("torch._inductor.compile_fx")

            self._watch_graphs()
        return self._begin_compile(captured)

    def _enter_backend(self, _compiler: Any, captured: Any, *_: Any) -> bool:
        """Watch Inductor if a backend of the program's own calls it, as that of compiled autograd can do.

        It must not be imported for a backend that does not. AOTAutograd is called after the import.
        """
        if not self._watches_graphs and not self._waits:
            self._waits = True
            tracer = getattr(sys.modules.get(_AUTOGRAD_TRACER), "aot_module_simplified", None)
            self._observe_if_there(tracer, self._enter_tracer)
        return self._begin_compile(captured)

    def _enter_tracer(self, *_: Any) -> None:
        if not self._watches_graphs and _COMPILER in sys.modules:
            self._watch_graphs()

    def _begin_compile(self, captured: Any) -> bool:
        self.captured.appendleft(_read_captured(captured, self.autograd.place_of))
        self._compiling += 1
        self.autograd.begin_compile(captured)
        return True

    def _leave_compile(self, _token: Any, _result: Any) -> None:
        self._compiling -= 1
        self.autograd.end_compile()

    def _fail_compile(self, _token: Any) -> None:
        self._compiling -= 1
        self.autograd.end_compile()

    def _watch_graphs(self) -> None:
        self._watches_graphs = True
        lowering = getattr(sys.modules.get(_COMPILER), "GraphLowering", None)
        name = "GraphLowering.compile_to_module"
        enter, leave = self._enter_lowering, self._leave_lowering
        self._observe(name, getattr(lowering, "compile_to_module", None), enter, leave, self._fail_lowering)
        load = getattr(_code_cache(), "load_by_key_path", None)
        loaded = self._leave_load
        self._observe("PyCodeCache.load_by_key_path", getattr(load, "__func__", None), lambda *_: True, loaded)
        self.autograd.install()

    def _enter_lowering(self, lowering: Any) -> Any:
        self._lowering += 1
        return lowering

    def _fail_lowering(self, _lowering: Any) -> None:
        self._lowering -= 1

    def _leave_lowering(self, lowering: Any, module: Any) -> None:
        self._lowering -= 1
        if _is_generated(module):
            self._seen.add(id(module))
            self._compiled(self._read(lowering, module))

    def _read(self, lowering: Any, module: ModuleType) -> CompiledGraph:
        try:
            found, is_whole = self.autograd.places_in(lowering.graph)
            return replace(read_graph(lowering, module, found), unknown="" if is_whole else WITHOUT_MODULES)
        except Exception as error:  # private structures of another version: the program is recorded without them
            return CompiledGraph(module, unknown=f"{type(error).__name__}: {error}")

    def _leave_load(self, _token: Any, module: Any) -> None:
        if not self._lowering and _is_generated(module) and id(module) not in self._seen:
            self._seen.add(id(module))
            self._compiled(CompiledGraph(module, unknown=CACHED_CODE))

    def look_for_loaded(self) -> None:
        """Report the generated files that were loaded before this object was installed."""
        for module in list(getattr(_code_cache(), "modules", None) or ()):
            self._leave_load(True, module)


def _code_cache() -> Any:
    return getattr(sys.modules.get(_CODE_CACHE), "PyCodeCache", None)


def _is_generated(module: Any) -> bool:
    return isinstance(module, ModuleType) and hasattr(module, "call") and bool(getattr(module, "__file__", None))


def _read_captured(captured: Any, in_copy: Callable[[Any], NodeOrigin | None]) -> CapturedGraph:
    """Return the modules and nodes of a graph that Dynamo captured. ``in_copy`` returns places of its nodes, first."""
    nodes = getattr(getattr(captured, "graph", None), "nodes", ())
    found = CapturedGraph({}, {}, flow=flow_of(nodes))
    for name, node in _nodes_in(captured, "", set()):
        for key, (path, cls) in (node.meta.get("nn_module_stack") or {}).items():
            place = place_in_stack(key, path, cls, ())
            found.modules[place.path] = place.module_key, place.class_name
        found.nodes[name] = in_copy(node) or place_of_node(node)
        if "/" not in name:
            found.users[name] = tuple(str(user.name) for user in node.users)
            found.inside[name] = tuple(_users_of(node, captured, ""))
            size = _size_of(node.meta.get("example_value"))
            if node.op == "placeholder":
                found.inputs[name] = size
            if size is not None:
                found.kinds[name] = TensorKind(prod(size), str(node.meta["example_value"].dtype).rpartition(".")[2])
    return found


def _users_of(node: Any, module: Any, prefix: str) -> Iterator[str]:
    """Yield the names of the nodes that use a node. In the place of a call of a body, those in the body that use it."""
    for user in node.users:
        name, body, operands = _body_of(user, module)
        if body is None:
            yield f"{prefix}{user.name}"
        for operand, placeholder in operands:
            if operand is node:
                yield from _users_of(placeholder, body, f"{prefix}{name}/")


def _body_of(call: Any, module: Any) -> tuple[str, Any, list[tuple[Any, Any]]]:
    """Return the body that only this node calls, under its name, and each operand with its input of the body.

    The name is "" and there is no body if the node calls none, or several, as ``torch.cond`` does.
    """
    bodies = [
        one for one in call.args if getattr(one, "op", "") == "get_attr" and hasattr(_attribute(one, module), "graph")
    ]
    calls = [one for one in module.graph.nodes if bodies and one.op == "get_attr" and one.target == bodies[0].target]
    if len(bodies) != 1 or len(calls) != 1 or len(bodies[0].users) != 1:
        return "", None, []
    body = _attribute(bodies[0], module)
    inputs = [one for one in body.graph.nodes if one.op == "placeholder"]
    operands = list(call.args)[-len(inputs) :] if inputs else []
    return str(bodies[0].name), body, list(zip(operands, inputs, strict=False))


def _attribute(node: Any, module: Any) -> Any:
    return getattr(module, str(node.target), None)


def _size_of(value: Any) -> tuple[int, ...] | None:
    """Return the size of a tensor; None if it depends on the inputs, or is none of a tensor."""
    size = tuple(getattr(value, "shape", (None,)))
    return size if all(type(length) is int for length in size) else None


def _nodes_in(captured: Any, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield names and nodes of a graph and of the bodies that it calls, each once."""
    for node in getattr(getattr(captured, "graph", None), "nodes", ()):
        body = getattr(captured, str(node.target), None) if getattr(node, "op", "") == "get_attr" else None
        if hasattr(body, "graph") and id(body) not in seen:
            seen.add(id(body))
            yield from _nodes_in(body, f"{prefix}{node.name}/", seen)
        yield f"{prefix}{node.name}", node


def source_lines(file: str) -> list[tuple[int, Frames]]:
    """Return ``(first line, source frames)`` of a generated file, in order; empty if Inductor has none.

    Inductor stores this map with its cache, so it is known for cached code as well.
    """
    found = getattr(_code_cache(), "linemaps", {}).get(file)
    if not found:
        return []
    lines, traces = found
    return [(int(line), parse_trace(trace)) for line, trace in zip(lines, traces, strict=True) if trace]


def frames_at(lines: list[tuple[int, Frames]], line: int) -> Frames:
    """Return the source frames of a line, from :func:`source_lines`; empty if it has none."""
    at = bisect.bisect_right(lines, line, key=lambda one: one[0]) - 1
    return lines[at][1] if at >= 0 else ()
