"""Find the modules of backward graphs that compiled autograd captures, which no module's forward leads to.

Compiled autograd copies the backward graph of each compiled region into one graph, which is then compiled anew. The
nodes of the copies get names of their own, and the compiler loses what they were made from. So three steps lead from
a generated line back to a module:

1. The nodes of a region's backward graph are read when AOTAutograd puts the graph into its cache entry, or from the
   graph itself if there is no cache. The copy of a graph has the same operators in the same order. Constants can be
   attributes in it.
2. Dynamo keeps the names of the copies.
3. AOTAutograd runs the captured graph to trace it. The line of the graph's code that runs is that of a node.

Regions of equal blocks share one backward graph. The weights that a copy uses tell which block it is of. Only nodes
from compiled regions are found: those of eager autograd have no module in the captured graph. Tested with torch 2.13.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from operator import getitem
from types import FrameType
from typing import Any, NamedTuple

from torch import nn

from gpuledger.collect.adapter.compiler.graph_nodes import FoundPlace, NodeOrigin, is_of_forward, place_of_node

_COMPILED_AUTOGRAD, _CACHE_ENTRIES = (
    "torch._dynamo.compiled_autograd",
    "torch._functorch._aot_autograd.aot_autograd_result",
)
_COMPUTES = ("call_function", "call_module")
_PROLOGUE = "call_aot_bwd_prologue"
"""The function that begins the copy of a backward graph. Its first argument are the saved tensors."""
_SAME = {"aten.view.default": "aten.reshape.default"}
"""Operator of a backward graph -> the one that compiled autograd copies in its place."""
_GRAPHS = 256
"""Number of backward graphs that are kept."""


_keys = count(-1, -1)


class Step(NamedTuple):
    """One node of a backward graph that is no constant: its operator and its place."""

    operator: str
    found: FoundPlace


@dataclass(frozen=True)
class CopiedRegion:
    """A copy of the backward graph of a compiled region.

    Attributes:
        modules: Path of each module below the region's own module -> its key when the region was compiled.
        weights: ``id`` of the parameters that the copy uses, or computes gradients of.
        is_sure: Whether the backward graph is known to be that of this region, and not that of one with equal code.
    """

    modules: dict[str, int]
    weights: set[int]
    is_sure: bool


class Backward(NamedTuple):
    """The nodes of a region's backward graph. ``is_sure`` is as in :class:`CopiedRegion`."""

    steps: tuple[Step, ...]
    is_sure: bool


_regions: dict[int, CopiedRegion] = {}
"""Key of a place's module, which is negative -> the copy that it is in. Later recordings use it, too."""


class AutogradWatch:
    """Reads what compiled autograd captures, and what AOTAutograd makes of it.

    Args:
        observe: Observes a function, which this torch may not have, with callbacks as of
            :class:`gpuledger.collect.adapter.observer.Observer`.
    """

    def __init__(self, observe: Callable[..., None]) -> None:
        self.regions = _regions
        self.keep: Callable[[str, tuple[Step, ...]], None] = lambda _code, _steps: None
        """Called with the code and the nodes of each backward graph that is put into a cache."""
        self.recall: Callable[[str], tuple[Step, ...]] = lambda _code: ()
        """Called with the code of a backward graph from a cache. Returns its nodes, none if they are not known."""
        self._observe = observe
        self._kept: dict[str, tuple[int, tuple[Step, ...]]] = {}
        self._inputs: list[int] = []
        self._copied: list[Backward] = []
        self._named: dict[str, Step] = {}
        self._makers: dict[str, Step] = {}
        self._graph: Any = None
        self._code: Any = None
        self._by_line: dict[int, FoundPlace] = {}
        self._traced: dict[str, FoundPlace] = {}

    def install(self) -> None:
        """Observe compiled autograd, and AOTAutograd's cache. Both are imported together with the compiler."""
        instance = getattr(sys.modules.get(_COMPILED_AUTOGRAD), "AutogradCompilerInstance", None)
        graph = getattr(sys.modules.get("torch.fx.graph"), "Graph", None)
        self._observe(getattr(sys.modules.get(_CACHE_ENTRIES), "serialize_graph_module", None), _steps_of, self._keep)
        self._observe(getattr(instance, "begin_capture", None), self._begin_capture)
        self._observe(getattr(instance, "proxy_call_aot_backward", None), self._copy)
        self._observe(getattr(instance, "end_capture", None), self._end_capture)
        self._observe(getattr(graph, "create_node", None), self._is_tracing, self._trace)

    # -- backward graphs ----------------------------------------------------------------------------------------

    def _keep(self, steps: tuple[Step, ...], entry: Any) -> None:
        """Keep the places of a backward graph. Those of its nodes are removed when its cache entry is made."""
        if len(self._kept) >= _GRAPHS:
            self._kept.pop(next(iter(self._kept)))
        code = _code_of(entry)
        self._kept[code] = id(entry), steps
        self.keep(code, steps)

    def _begin_capture(self, _instance: Any, inputs: Any, *_: Any) -> None:
        """Note which inputs are parameters. The list is changed afterwards."""
        self._inputs = [id(one) if isinstance(one, nn.Parameter) else 0 for one in inputs]
        self._copied.clear()

    def _copy(self, _instance: Any, *arguments: Any) -> None:
        """Note the backward graph that is copied next."""
        compiled = next(
            (vars(type(one)).get("_forward_cls") for one in arguments if "_forward_cls" in vars(type(one))), None
        )
        self._copied.append(self._backward_of(compiled))

    def _backward_of(self, compiled: Any) -> Backward:
        """Return the nodes of a compiled function's backward graph."""
        source = getattr(compiled, "_lazy_backward_info", None)
        module = getattr(source, "bw_module", None)
        if module is not None:
            return Backward(_steps_of(module), is_sure=True)
        entry = getattr(getattr(source, "bw_module_fn", None), "__self__", None)
        if entry is None:
            return Backward((), is_sure=False)
        code = _code_of(entry)
        number, steps = self._kept.get(code, (0, ()))
        return Backward(steps or self.recall(code), is_sure=number == id(entry))

    def _end_capture(self, instance: Any, *_: Any) -> None:
        """Find the copies in the captured graph, before its nodes are ordered anew."""
        nodes = list(instance.fx_tracer.graph.nodes)
        starts = [at for at, node in enumerate(nodes) if _is_prologue(node)]
        if not starts or len(starts) != len(self._copied):
            return
        copies: dict[Any, int] = {}
        computing = set(_computing(nodes))
        for (steps, is_sure), start, end in zip(self._copied, starts, [*starts[1:], len(nodes)], strict=True):
            own = [node for node in nodes[start:end] if node in computing]
            at = _find([_operator_of(node) for node in own], [step.operator for step in steps])
            if at < 0 or not steps:
                continue
            key = next(_keys)
            self.regions[key] = CopiedRegion(_modules_in(steps), self._weights_in(nodes[start]), is_sure)
            for node, (operator, found) in zip(own[at : at + len(steps)], steps, strict=True):
                place = found.place._replace(module_key=key)
                self._named[str(node.name)] = Step(operator, found._replace(place=place))
                copies[node] = key
                for made in node.all_input_nodes if node.target is getitem else ():
                    if made in copies:
                        self._makers[str(node.name)] = self._named[str(made.name)]
        self._find_weights(nodes, copies)

    def _weights_in(self, node: Any) -> set[int]:
        """Return the parameters among the tensors that a node uses."""
        numbers = [one.args[1] for one in node.all_input_nodes if _is_input(one)]
        return {self._inputs[number] for number in numbers if number < len(self._inputs)} - {0}

    def _find_weights(self, nodes: list[Any], copies: dict[Any, int]) -> None:
        """Add the parameters for which copies compute gradients. ``copies`` has the nodes of each."""
        for node in nodes:
            keys = {copies[one] for one in node.all_input_nodes if one in copies}
            if len(keys) == 1 and not _is_prologue(node):
                copies[node] = keys.pop()
                self.regions[copies[node]].weights.update(self._weights_in(node))

    # -- the graph that is compiled -----------------------------------------------------------------------------

    def begin_compile(self, captured: Any) -> None:
        """Begin to trace a graph that Dynamo has captured, if nodes of compiled autograd are in it."""
        own = getattr(sys.modules.get(_COMPILED_AUTOGRAD), "in_compiled_autograd_region", False)
        self._graph = captured if own else None
        self._traced = {}

    @property
    def is_at_work(self) -> bool:
        """Return whether a graph of compiled autograd is being compiled."""
        return self._graph is not None

    def end_compile(self) -> None:
        """Stop tracing."""
        self._graph = self._code = None
        self._traced, self._by_line = {}, {}

    def place_of(self, node: Any) -> NodeOrigin | None:
        """Return the place of a node of a graph that Dynamo has captured; None if it is in no copy."""
        found = self._found(node)
        return None if found is None else found.place

    def _found(self, node: Any) -> FoundPlace | None:
        """Return the place of a node that Dynamo has captured. It keeps no name of a tuple, but those of its items."""
        items = (self._makers.get(str(user.name)) for user in node.users if user.target is getitem)
        operator = _operator_of(node)
        for step in (self._named.get(str(node.name)), *items):
            if step is not None and step.operator == operator:
                return step.found
        return None

    def _is_tracing(self, *_: Any) -> bool | None:
        return True if self._graph is not None else None

    def _trace(self, _token: Any, made: Any) -> None:
        """Note the place of a new node, by the line of the captured graph that runs."""
        code = getattr(vars(type(self._graph)).get("forward"), "__code__", None)
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        if frame is None:
            return
        if code is not self._code:
            self._code, self._by_line = code, self._places_by_line()
        found = self._by_line.get(frame.f_lineno - frame.f_code.co_firstlineno)
        if found is not None:
            self._traced[str(made.name)] = found

    def _places_by_line(self) -> dict[int, FoundPlace]:
        """Return the places of the captured graph's nodes, by line of its code."""
        nodes = list(self._graph.graph.nodes)
        found = {}
        for line, number in (getattr(self._graph, "_lineno_map", None) or {}).items():
            place = None if number is None else self._found(nodes[number])
            if place is not None:
                found[line] = place
        return found

    def places_in(self, graph: Any) -> tuple[dict[str, FoundPlace] | None, bool]:
        """Return the places of the nodes of a lowered graph, by name, and whether all of them have one.

        A node that is in no copy, such as one that adds to a gradient, has the place of a node that computes what it
        uses. The compiler makes constants anew: they have the place of a node that uses them. The places are None if
        the graph is none of compiled autograd.
        """
        if not self.is_at_work:
            return None, True
        found, is_whole = dict(self._traced), True
        constants: dict[Any, None] = {}
        for node in graph.nodes:
            if str(node.name) in found or node.op not in ("call_function", "get_attr"):
                continue
            before = [found[str(one.name)] for one in node.all_input_nodes if str(one.name) in found]
            if before:
                found[str(node.name)] = before[-1]
            elif all(one in constants for one in node.all_input_nodes):
                constants[node] = None
            else:
                is_whole = False
        for node in reversed(constants):
            after = [found[str(one.name)] for one in node.users if str(one.name) in found]
            if after:
                found[str(node.name)] = after[0]
        return found, is_whole


def _steps_of(module: Any) -> tuple[Step, ...]:
    """Return operators and places of the nodes of a backward graph."""
    return tuple(
        Step(_operator_of(node), FoundPlace(place_of_node(node), is_of_forward(node)))
        for node in _computing(module.graph.nodes)
    )


def _computing(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes that compute something from inputs of their graph. A copy can have constants as attributes."""
    constants: set[Any] = set()
    for node in nodes:
        if node.op == "get_attr" or (node.op in _COMPUTES and all(one in constants for one in node.all_input_nodes)):
            constants.add(node)
        elif node.op in _COMPUTES:
            yield node


def _operator_of(node: Any) -> str:
    name = str(node.target)
    return _SAME.get(name, name)


def _modules_in(steps: Iterable[Step]) -> dict[str, int]:
    places = (step.found.place for step in steps)
    return {place.path: place.module_key for place in places if place.path and place.module_key}


def _code_of(entry: Any) -> str:
    """Return the code of the graph in an entry of AOTAutograd's cache."""
    return str(entry.args[0]["_code"])


def _is_prologue(node: Any) -> bool:
    return getattr(node.target, "__name__", "") == _PROLOGUE


def _is_input(node: Any) -> bool:
    """Return whether a node is an element of the captured graph's list of tensors."""
    return (
        node.op == "call_function"
        and len(node.args) == 2
        and getattr(node.args[0], "op", "") == "placeholder"
        and (type(node.args[1]) is int and str(node.args[0].target) == "inputs")
    )


def _find(whole: list[str], part: list[str]) -> int:
    """Return where a list contains another one; -1 if it does not."""
    return next((at for at in range(len(whole) - len(part) + 1) if whole[at : at + len(part)] == part), -1)
