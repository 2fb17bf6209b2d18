"""Modules and source lines of the nodes that TorchInductor generates code from, read from its lowered graphs.

Tested with torch 2.11 and torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

from gpuledger.collect.adapter.compiler.graph_operations import GraphFlow

Frames = tuple[tuple[str, int, str], ...]

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')
_NO_KERNELS = ("NoneType", "MultiOutput")
_ROOT = re.compile(r"^[LG]\['(?!___stack)[^']*'\]\.?")
"""The variable with the compiled module. It is not one in which Dynamo keeps a module called after a graph break."""


class NodeOrigin(NamedTuple):
    """The module and the source lines of one node. ``module_key`` is ``id(module)``, 0 if unknown.

    In a graph of compiled autograd, it is a negative number: see :mod:`.compiled_autograd`.

    ``path`` is the module's path below the compiled function's own module. ``frames`` are those of the program,
    innermost first. ``among`` are the keys of the modules of which it can be, if it is the module around them.
    """

    module_key: int
    path: str
    class_name: str
    frames: Frames
    among: tuple[int, ...] = ()


NOWHERE = NodeOrigin(0, "", "", ())


class FoundPlace(NamedTuple):
    """The place of a node that the node itself does not tell. ``is_forward`` is whether forward computes it, too."""

    place: NodeOrigin
    is_forward: bool


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
    """One generated file.

    Attributes:
        module: Its Python module.
        buffers: The place that makes each buffer.
        kernels: Its kernels, those in bodies as well.
        bodies: Name of a function for a body, such as a branch of ``torch.cond`` -> place of the first call.
        unknown: Why the nodes could not be read, so that only the lines of its source are known; "" if they were.
    """

    module: ModuleType
    buffers: dict[str, NodeOrigin] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    bodies: dict[str, NodeOrigin] = field(default_factory=dict)
    unknown: str = ""

    @property
    def file(self) -> str:
        """Return the path of the generated file."""
        return str(self.module.__file__)


class TensorKind(NamedTuple):
    """Number of elements of a tensor, and the name of its type, such as ``bfloat16``."""

    elements: int
    type_name: str


@dataclass(frozen=True)
class CapturedGraph:
    """A graph that Dynamo captured: path of a module -> its key and class name, and name of a node -> its place.

    Nodes of a body, such as a checkpointed function, have the body's name and "/" before their own.

    ``inputs`` are the names of its inputs in order, each with its size if that is constant. ``users`` are the names of
    the nodes that use a node, and ``inside`` are these with the nodes of a body in the place of its call. ``kinds`` are
    the number of elements of each tensor, if constant, and its type.
    ``returned`` are the variables that its forward code returns, each with the only place that uses it, if known.
    ``flow`` is what it computes from its inputs.
    """

    modules: dict[str, tuple[int, str]]
    nodes: dict[str, NodeOrigin]
    inputs: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    users: dict[str, tuple[str, ...]] = field(default_factory=dict)
    inside: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kinds: dict[str, TensorKind] = field(default_factory=dict)
    returned: list[tuple[str, NodeOrigin | None]] = field(default_factory=list)
    flow: GraphFlow = field(default_factory=GraphFlow)


def read_graph(lowering: Any, module: ModuleType, found: Mapping[str, FoundPlace] | None = None) -> CompiledGraph:
    """Return the places of a graph's buffers and kernels, from the nodes that Inductor keeps for them.

    Args:
        lowering: The lowered graph.
        module: The generated file.
        found: Names of nodes that do not tell their places -> place.
    """
    graph = CompiledGraph(module)
    _read_into(graph, lowering, _Order(lowering.name_to_buffer.values(), found=found))
    return graph


def _read_into(graph: CompiledGraph, lowering: Any, order: _Order) -> None:
    """Add the buffers and kernels of a graph, and those of the bodies that it calls."""
    nodes = list(getattr(getattr(lowering, "scheduler", None), "nodes", None) or ())
    order.find_users(one for node in nodes for one in node.get_nodes())
    graph.buffers |= {str(name): order.place_of(made) for name, made in lowering.name_to_buffer.items()}
    graph.kernels += [kernel for node in nodes if (kernel := _kernel_of(node, lowering, order)) is not None]
    for made in lowering.name_to_buffer.values():
        for body in _bodies_of(made):
            if body.name not in graph.bodies:
                place = graph.bodies[body.name] = order.place_of(made)
                _read_into(graph, body, _Order(body.name_to_buffer.values(), around=place, graph=body.graph))


def _bodies_of(made: Any) -> Iterator[Any]:
    """Yield the lowered graphs of the bodies that an operation calls, such as the branches of ``torch.cond``.

    Each is an attribute of its own. PyTorch 2.14 has the branches in a list.
    """
    attributes = list(getattr(made, "__dict__", {}).values())
    listed = [one for value in attributes if isinstance(value, list | tuple) for one in value]
    for value in (*attributes, *listed):
        body = value if hasattr(value, "name_to_buffer") else getattr(value, "graph", None)
        if isinstance(getattr(body, "name_to_buffer", None), dict) and isinstance(getattr(body, "name", None), str):
            yield body


class _Order:
    """The order of the nodes in their graph, and their places.

    Args:
        operations: Those of the graph. Generated loops have ``data``, calls of a library have none.
        around: Place of the call, if the graph is a body. Nodes without a place of their own have it.
        graph: The graph, if it is a body. Operations of a body have nodes of the graph around it as origins, too.
        found: Names of nodes that do not tell their places -> place.
    """

    def __init__(
        self,
        operations: Iterable[Any],
        around: NodeOrigin = NOWHERE,
        graph: Any = None,
        found: Mapping[str, FoundPlace] | None = None,
    ) -> None:
        self._numbers: dict[Any, int] = {}
        self._users: dict[str, NodeOrigin] = {}
        self._around = around
        self._graph = graph
        self._found = found or {}
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
        found = [node for node in origins if self._graph is None or node.graph is self._graph]
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
        known = [self._place(node) for node in nodes if self._has_place(node)]
        if not known and nodes and all(getattr(node, "op", "") == "placeholder" for node in nodes):
            known = [self._users[name] for name in [str(getattr(made, "name", ""))] if name in self._users]
        place = known[0] if known else self._place(nodes[0]) if nodes else NOWHERE
        return place if known or self._graph is None else self._around

    def _place(self, node: Any) -> NodeOrigin:
        found = self._found.get(str(node.name))
        return place_of_node(node) if found is None else found.place

    def _has_place(self, node: Any) -> bool:
        """Return whether a node has a module, or is code of the program in none: that of the compiled function itself.

        A node of backward without a module adds gradients.
        """
        found = self._found.get(str(node.name))
        place, is_forward = FoundPlace(place_of_node(node), is_of_forward(node)) if found is None else found
        return bool(place.module_key > 0 or place.path or (is_forward and place.frames))


def is_of_forward(node: Any) -> bool:
    """Return whether forward computes a node, too."""
    return bool(node.meta.get("partitioner_tag", "is_forward") == "is_forward")


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
    return place_in_stack(key, name, cls, frames)


def place_in_stack(key: Any, name: Any, cls: Any, frames: Frames) -> NodeOrigin:
    """Return a place from one entry of a node's module stack."""
    number = str(key).partition("@")[0]
    path = _ROOT.sub("", str(name).partition("@")[0])
    class_name = cls.__name__ if isinstance(cls, type) else str(cls).rpartition(".")[2]
    return NodeOrigin(int(number) if number.isdecimal() else 0, path, class_name, frames)


def _kernel_of(node: Any, lowering: Any, order: _Order) -> Kernel | None:
    """Return one kernel from the scheduler's (fused) node; None if it computes nothing.

    What a call returns is no kernel of its own, even if it is a node.
    """
    inner = [one for one in node.get_nodes() if type(getattr(one, "node", None)).__name__ not in _NO_KERNELS]
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


def common_path(paths: Iterable[str]) -> str:
    """Return the path of the innermost module that contains the modules at some paths."""
    shared = []
    for parts in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def parse_trace(text: str | None) -> Frames:
    """Return the frames of a stack trace in Python's format, innermost first."""
    found = [(file, int(line), name) for file, line, name in _FRAME.findall(text or "")]
    return tuple(reversed(found))
