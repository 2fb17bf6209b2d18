"""Which nodes of a captured graph use what a kernel of cached code reads, or have the weights of its gradients.

The generated code names its inputs by their number, and Dynamo captures the graph with the same inputs in every
process. Backward code returns the gradients of all inputs in their order, and gets what forward code returns after its
outputs. Where the sizes in the code are not those of the graph, nothing is known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from math import prod

from gpuledger.collect.adapter.compiler.buffer_values import EXTERN, BufferValues, find_values
from gpuledger.collect.adapter.compiler.generated_code import Statement
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, NodeOrigin, TensorKind

_BACKWARD = re.compile(r"^# AOT ID: \['\w*_backward'\]", re.MULTILINE)
_INPUT = re.compile(r"^(?:primals_(\d+)|arg(\d+)_1)$")
_SIZE = re.compile(r"assert_size_stride\((primals_\d+|arg\d+_1), \(([\d, ]*)\)")
_ALLOCATED = re.compile(r"(buf\d+) = empty_strided\w*\(\(([\d, ]*)\), \([\d, ]*\), torch\.(\w+)\)")
_ARGUMENTS = re.compile(r"^ +([\w, ]+?),? = args$", re.MULTILINE)
_RETURN = re.compile(r"^ +return (\(.*\))$", re.MULTILINE)


class DataFlow:
    """Narrows the places that a kernel can have.

    Args:
        captured: The graph that Dynamo captured.
        text: The content of the generated file.
        is_backward: Whether it is the code of a backward graph.
    """

    def __init__(self, captured: CapturedGraph, text: str, *, is_backward: bool) -> None:
        self._captured = captured
        self._is_backward = is_backward
        self._inputs = inputs_of(captured, text)
        self._kinds = dict(_allocated(text))
        self._nodes: dict[str, str] = {}
        self._gradients = dict(self._gradients_in(text)) if is_backward else {}
        self._saved = dict(self._saved_in(text)) if is_backward else {}
        self._text = text

    def find_values(self, statements: Sequence[Statement], nodes: Mapping[int, str]) -> BufferValues:
        """Return the values of buffers of forward code. ``nodes`` are those that the comments of kernels name last."""
        if self._is_backward or not self._inputs:
            return BufferValues({}, {})
        lines = [one.line for one in statements if one.kernel.startswith(EXTERN)]
        of_library = {line: nodes[line] for line in lines if nodes.get(line) in self._captured.users}
        return find_values(statements, of_library, self._captured, self._input, self._kinds)

    def made(self, buffer: str, node: str) -> None:
        """Record the node that a buffer has the value of."""
        self._nodes[buffer] = node

    def of_gradient(self, buffer: str) -> NodeOrigin | None:
        """Return the place that uses a weight, if a buffer has its gradient and no other place uses it."""
        return self._gradients.get(buffer)

    def narrowed(self, places: list[NodeOrigin], names: Iterable[str], outputs: Iterable[str]) -> list[NodeOrigin]:
        """Return the places that a kernel can have, of those with its source lines.

        Or those that use the weights that it reads: its lines can be those of a view at its end.

        Args:
            places: Those with its source lines.
            names: Variables that the kernel reads and writes.
            outputs: Those that it makes.
        """
        if len(set(places)) < 2:
            return places
        users = {name: self._user(name) for name in names}
        known = [place for place in users.values() if place in places]
        known = known or [self._gradients[name] for name in outputs if self._gradients.get(name) in places]
        of_weights = [place for name, place in users.items() if place is not None and self._input(name)]
        return known or of_weights or places

    def _user(self, name: str) -> NodeOrigin | None:
        """Return the place that uses a variable of generated code; None if several nodes do, or it is not known."""
        return self._saved.get(name) or self._only_user(self._nodes.get(name) or self._input(name))

    def _only_user(self, node: str) -> NodeOrigin | None:
        users = self._users(node)
        return self._captured.nodes.get(users[0]) if len(users) == 1 else None

    def _users(self, node: str) -> tuple[str, ...]:
        return self._captured.inside.get(node) or self._captured.users.get(node, ())

    def _input(self, name: str) -> str:
        """Return the name of a graph's input; "" for none."""
        number = _number_of(name)
        return self._inputs[number] if 0 <= number < len(self._inputs) else ""

    def keep_returned(self, values: BufferValues) -> None:
        """Keep what forward code returns: backward code gets it, under other names."""
        if self._is_backward:
            return
        self._captured.returned.clear()
        for value in _returned(self._text):
            name = value.id if isinstance(value, ast.Name) else ""
            node = values.nodes.get(name, "")
            is_copy = name in values.nodes and values.computed[name] != node
            place = self._captured.nodes.get(node) if is_copy else self._only_user(node)
            self._captured.returned.append((name, place))

    def _saved_in(self, text: str) -> Iterator[tuple[str, NodeOrigin]]:
        """Yield the variables that backward code gets from forward, each with the only place that uses it there."""
        found = _ARGUMENTS.search(text)
        names = [name.strip() for name in found[1].split(",") if name.strip()] if found else []
        saved = list(takewhile(lambda name: not name.startswith("tangents_"), names))
        kept = self._captured.returned[-len(saved) :] if saved else []
        pairs = [(name, other) for name, (other, _) in zip(saved, kept, strict=False)]
        are_inputs_same = all(name == other for name, other in pairs if _INPUT.match(name) or _INPUT.match(other))
        if len(kept) == len(saved) and are_inputs_same:
            yield from ((name, place) for name, (_, place) in zip(saved, kept, strict=True) if place is not None)

    def before(self, place: NodeOrigin) -> NodeOrigin | None:
        """Return the place from which a place gets its gradient in backward; None if it gets it from several."""
        if not self._is_backward:
            return None
        own = {name for name, one in self._captured.nodes.items() if one == place}
        users = {user for name in own for user in self._captured.users.get(name, ())} - own
        places = {self._captured.nodes[user] for user in users if user in self._captured.nodes}
        return places.pop() if len(places) == 1 else None

    def _gradients_in(self, text: str) -> Iterator[tuple[str, NodeOrigin]]:
        """Yield the variables that backward code returns as gradients, each with the only place that uses its input."""
        values = _returned(text)
        if len(values) != len(self._inputs):
            return
        for name, value in zip(self._inputs, values, strict=True):
            variables = [
                node.id for node in ast.walk(value) if isinstance(node, ast.Name) and node.id.startswith("buf")
            ]
            users = self._users(name)
            if len(users) == len(variables) == 1 and users[0] in self._captured.nodes:
                yield variables[0], self._captured.nodes[users[0]]


def is_of_backward(text: str) -> bool:
    """Return whether generated code computes a backward graph."""
    return _BACKWARD.search(text) is not None


def inputs_of(captured: CapturedGraph, text: str) -> list[str]:
    """Return the names of the graph's inputs in the order of the code's; none if their sizes are not the same."""
    return list(captured.inputs) if _has_sizes(captured, text) else []


def _returned(text: str) -> list[ast.expr]:
    """Return what the last function of generated code returns; empty if that is not a tuple."""
    returned = _RETURN.findall(text)
    values = ast.parse(returned[-1], mode="eval").body if returned else None
    return values.elts if isinstance(values, ast.Tuple) else []


def _allocated(text: str) -> Iterator[tuple[str, TensorKind]]:
    """Yield the buffers that generated code allocates with a constant size."""
    for name, size, type_name in _ALLOCATED.findall(text):
        yield name, TensorKind(prod(int(length) for length in size.split(",") if length.strip()), type_name)


def _number_of(name: str) -> int:
    """Return the number of an input of generated code, from 0; -1 for any other variable."""
    found = _INPUT.match(name)
    if found is None:
        return -1
    return int(found[2]) if found[1] is None else int(found[1]) - 1


def _has_sizes(captured: CapturedGraph, text: str) -> bool:
    """Return whether the inputs of generated code have the sizes of the graph's inputs."""
    sizes = list(captured.inputs.values())
    for name, size in _SIZE.findall(text):
        number = _number_of(name)
        if not 0 <= number < len(sizes):
            return False
        known = sizes[number]
        if known is not None and known != tuple(int(length) for length in size.split(",") if length.strip()):
            return False
    return True
