"""Read which modules and lines TorchInductor generates code from. All of its private functions are used here.

Nothing of the compiler is changed: two functions are observed, and the graph that one of them has just compiled is
read. So the generated code, its cache keys and the number of compilations are those of a run without gpuledger. Tested
with torch 2.11 and torch 2.13.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch

from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation
from gpuledger.collect.adapter.observer import Observer
from gpuledger.model.journal.journal import CACHED_CODE

CAPTURED = 256
"""Number of captured graphs that are kept."""

Frames = tuple[tuple[str, int, str], ...]

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')
_ROOT = re.compile(r"^[LG]\['[^']*'\]\.?")
_COMPILER, _CODE_CACHE = "torch._inductor.graph", "torch._inductor.codecache"

LOST_WITHOUT = {
    "torch._TorchCompileInductorWrapper.__call__": "compiled regions are not divided among their modules",
    "GraphLowering.compile_to_module": "newly compiled regions are not divided among their modules",
    "PyCodeCache.load_by_key_path": "compiled regions from a cache are not divided among their modules",
}
"""Private functions of Inductor in use -> what does not work if the function is missing."""


class NodeOrigin(NamedTuple):
    """The module and the source lines of one node. ``module_key`` is ``id(module)``, 0 if unknown.

    ``path`` is the module's path below the compiled function's own module. ``frames`` are those of the program,
    innermost first.
    """

    module_key: int
    path: str
    class_name: str
    frames: Frames


NOWHERE = NodeOrigin(0, "", "", ())


@dataclass(frozen=True)
class Kernel:
    """One kernel of a compiled graph.

    Attributes:
        outputs: Buffers that it makes.
        changed: Buffers and inputs that it writes in place.
        nodes: Names of the nodes that it computes.
        parts: Places of its parts, each with the bytes that the part reads and writes.
    """

    outputs: tuple[str, ...]
    changed: tuple[str, ...]
    nodes: tuple[str, ...]
    parts: tuple[tuple[NodeOrigin, int], ...]


@dataclass
class CompiledGraph:
    """One generated file: ``module`` is its Python module; ``buffers`` gives the place that makes each buffer.

    ``unknown`` says why the nodes could not be read, so that only the lines of its source are known; "" if they were.
    """

    module: ModuleType
    buffers: dict[str, NodeOrigin] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    unknown: str = ""

    @property
    def file(self) -> str:
        """Return the path of the generated file."""
        return str(self.module.__file__)


@dataclass(frozen=True)
class CapturedGraph:
    """A graph that Dynamo captured: path of a module -> its key and class name, and name of a node -> its place.

    Nodes of a body, such as a checkpointed function, have the body's name and "/" before their own.
    """

    modules: dict[str, tuple[int, str]]
    nodes: dict[str, NodeOrigin]


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
        self._watches_graphs = False
        self._compiling = self._lowering = 0
        self._seen: set[int] = set()

    @property
    def possible(self) -> tuple[CapturedGraph, ...]:
        """Return the graphs that generated code can be of: the one that is being compiled, else all.

        A backward graph can be compiled later than its forward.
        """
        return tuple(self.captured)[:1] if self._compiling else tuple(self.captured)

    def install(self) -> None:
        """Observe the compiler, which the program need not have imported yet."""
        wrapper = vars(getattr(torch, "_TorchCompileInductorWrapper", object)).get("__call__")
        name = "torch._TorchCompileInductorWrapper.__call__"
        self._observe(name, wrapper, self._enter_compile, self._leave_compile, self._fail_compile)
        if _COMPILER in sys.modules:
            self._watch_graphs()
            self.look_for_loaded()

    def remove(self) -> None:
        """Stop observing."""
        while self._observations:
            self._observations[-1].remove()
            self._observations.pop()

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
        self.captured.appendleft(_read_captured(captured))
        self._compiling += 1
        return True

    def _leave_compile(self, _token: Any, _result: Any) -> None:
        self._compiling -= 1

    def _fail_compile(self, _token: Any) -> None:
        self._compiling -= 1

    def _watch_graphs(self) -> None:
        self._watches_graphs = True
        lowering = getattr(sys.modules.get(_COMPILER), "GraphLowering", None)
        name = "GraphLowering.compile_to_module"
        enter, leave = self._enter_lowering, self._leave_lowering
        self._observe(name, getattr(lowering, "compile_to_module", None), enter, leave, self._fail_lowering)
        load = getattr(_code_cache(), "load_by_key_path", None)
        loaded = self._leave_load
        self._observe("PyCodeCache.load_by_key_path", getattr(load, "__func__", None), lambda *_: True, loaded)

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
            return read_graph(lowering, module)
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


def _read_captured(captured: Any) -> CapturedGraph:
    """Return the modules and nodes of a graph that Dynamo captured."""
    found = CapturedGraph({}, {})
    for name, node in _nodes_in(captured, "", set()):
        for key, (path, cls) in (node.meta.get("nn_module_stack") or {}).items():
            place = _place(key, path, cls, ())
            found.modules[place.path] = place.module_key, place.class_name
        found.nodes[name] = place_of_node(node)
    return found


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


def parse_trace(text: str | None) -> Frames:
    """Return the frames of a stack trace in Python's format, innermost first."""
    found = [(file, int(line), name) for file, line, name in _FRAME.findall(text or "")]
    return tuple(reversed(found))


# -- reading a compiled graph ---------------------------------------------------------------------------------------


def read_graph(lowering: Any, module: ModuleType) -> CompiledGraph:
    """Return the places of a graph's buffers and kernels, from the nodes that Inductor keeps for them."""
    nodes = list(getattr(getattr(lowering, "scheduler", None), "nodes", None) or ())
    order = _Order(lowering.name_to_buffer.values())
    order.find_users(one for node in nodes for one in node.get_nodes())
    buffers = {str(name): order.place_of(made) for name, made in lowering.name_to_buffer.items()}
    kernels = [kernel for node in nodes if (kernel := _kernel_of(node, lowering, order)) is not None]
    return CompiledGraph(module, buffers, kernels)


class _Order:
    """The order of the nodes in their graph, and their places.

    Args:
        operations: Those of the graph. Generated loops have ``data``, calls of a library have none.
    """

    def __init__(self, operations: Iterable[Any]) -> None:
        self._numbers: dict[Any, int] = {}
        self._users: dict[str, NodeOrigin] = {}
        self._calls = {node for made in operations if not hasattr(made, "data") for node in self.computed_by(made)[:1]}

    def find_users(self, scheduled: Iterable[Any]) -> None:
        """Note the place of the first operation that reads each buffer."""
        for one in scheduled:
            made = getattr(one, "node", None)
            place = NOWHERE if made is None else self.place_of(made)
            if place.module_key or place.path:
                for dep in one.read_writes.reads:
                    self._users.setdefault(str(dep.name), place)

    def sorted(self, origins: Iterable[Any]) -> list[Any]:
        """Return nodes, the last one first."""
        found = list(origins)
        if found and found[0] not in self._numbers:
            self._numbers.update((node, number) for number, node in enumerate(found[0].graph.nodes))
        return sorted(found, key=lambda node: self._numbers.get(node, -1), reverse=True)

    def computed_by(self, made: Any) -> list[Any]:
        """Return the nodes that an operation computes, the last one first.

        The origins of a call of a library contain nodes that compute its inputs, and those of such an input contain
        the node of the call, if the input is computed in the layout that the library wants.
        """
        origins = self.sorted(_origins_of(made))
        if hasattr(made, "data"):
            return [node for node in origins if node not in self._calls] or origins
        own = getattr(made, "origin_node", None)
        return [own] if own is not None else origins[:1]

    def place_of(self, made: Any) -> NodeOrigin:
        """Return the place of a buffer or operation: that of its own node, else of the last node with a place.

        A copy of one of the graph's inputs is on the module that reads it.
        """
        own = getattr(made, "origin_node", None)
        nodes = ([own] if own is not None else []) + self.computed_by(made) + self.sorted(_origins_of(made))
        known = [place_of_node(node) for node in nodes if _has_place(node)]
        if not known and nodes and all(getattr(node, "op", "") == "placeholder" for node in nodes):
            known = [self._users[name] for name in [str(getattr(made, "name", ""))] if name in self._users]
        return known[0] if known else place_of_node(nodes[0]) if nodes else NOWHERE


def _has_place(node: Any) -> bool:
    """Return whether a node has a module, or is code of the program in none: that of the compiled function itself.

    A node of backward without a module adds gradients.
    """
    place = place_of_node(node)
    is_forward = node.meta.get("partitioner_tag", "is_forward") == "is_forward"
    return bool(place.module_key or place.path or (is_forward and place.frames))


def _origins_of(made: Any) -> Iterator[Any]:
    reader = getattr(made, "get_origins", None)
    found = getattr(made, "origins", None) if reader is None else reader()
    yield from found or ()


def place_of_node(node: Any) -> NodeOrigin:
    """Return the place of one node of a graph; in a backward graph, that of its forward node."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    frames = parse_trace(node.meta.get("stack_trace"))
    if not stack:
        return NodeOrigin(0, "", "", frames)
    key, (name, cls) = next(reversed(stack.items()))
    return _place(key, name, cls, frames)


def _place(key: Any, name: Any, cls: Any, frames: Frames) -> NodeOrigin:
    """Return a place from one entry of a node's module stack."""
    number = str(key).partition("@")[0]
    path = _ROOT.sub("", str(name).partition("@")[0])
    class_name = cls.__name__ if isinstance(cls, type) else str(cls).rpartition(".")[2]
    return NodeOrigin(int(number) if number.isdecimal() else 0, path, class_name, frames)


def _kernel_of(node: Any, lowering: Any, order: _Order) -> Kernel | None:
    """Return one kernel from the scheduler's (fused) node; None if it computes nothing."""
    inner = [one for one in node.get_nodes() if getattr(one, "node", None) is not None]
    if not inner:
        return None
    nodes = list(dict.fromkeys(str(at.name) for one in inner for at in reversed(order.computed_by(one.node))))
    parts = parts_by_module((order.place_of(one.node), _moved_bytes(one, lowering)) for one in inner)
    changed = [str(name) for one in inner for made in one.get_outputs() for name in made.get_mutations()]
    return Kernel(tuple(map(str, node.get_buffer_names())), tuple(changed), tuple(nodes), parts)


def parts_by_module(parts: Iterable[tuple[NodeOrigin, int]]) -> tuple[tuple[NodeOrigin, int], ...]:
    """Return one part for each module, with the bytes of all its parts."""
    found: dict[Any, tuple[NodeOrigin, int]] = {}
    for place, moved_bytes in parts:
        first, before_bytes = found.get(place[:2], (place, 0))
        found[place[:2]] = first, before_bytes + moved_bytes
    return tuple(found.values())


def _moved_bytes(node: Any, lowering: Any) -> int:
    """Return the bytes that one part of a kernel reads and writes; 0 if Inductor cannot tell."""
    found = 0
    for dep in node.read_writes.reads | node.read_writes.writes:
        try:
            found += int(lowering.get_dep_size_hint(dep))
        except Exception:  # an unbacked size, or a torch without this function
            return 0
    return found
