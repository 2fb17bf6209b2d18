"""Which nodes of a captured graph use what a kernel of cached code reads, or have the weights of its gradients.

The generated code names its inputs by their number, and Dynamo captures the graph with the same inputs in every
process. Backward code returns the gradients of all inputs in their order. Where the sizes in the code are not those of
the graph, nothing is known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gpuledger.collect.adapter.compiler.buffer_values import EXTERN, find_values
from gpuledger.collect.adapter.compiler.generated_code import Statement
from gpuledger.collect.adapter.compiler.graph_nodes import CapturedGraph, NodeOrigin

_INPUT = re.compile(r"^(?:primals_(\d+)|arg(\d+)_1)$")
_SIZE = re.compile(r"assert_size_stride\((primals_\d+|arg\d+_1), \(([\d, ]*)\)")
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
        self._inputs = list(captured.inputs) if _has_sizes(captured, text) else []
        self._nodes: dict[str, str] = {}
        self._gradients = dict(self._returned(text)) if is_backward else {}

    def find_values(self, statements: Sequence[Statement], nodes: Mapping[int, str]) -> dict[str, str]:
        """Return ``buffer -> node`` of forward code. ``nodes`` are those that the comments of kernels name last."""
        if self._is_backward or not self._inputs:
            return {}
        lines = [one.line for one in statements if one.kernel.startswith(EXTERN)]
        of_library = {line: nodes[line] for line in lines if nodes.get(line) in self._captured.users}
        return find_values(statements, of_library, self._captured, self._input)

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
        known = [place for place in users.values() if place is not None]
        known += [self._gradients[name] for name in outputs if name in self._gradients]
        of_weights = [place for name, place in users.items() if place is not None and self._input(name)]
        return [place for place in known if place in places] or of_weights or places

    def _user(self, name: str) -> NodeOrigin | None:
        """Return the place that uses a variable of generated code; None if several nodes do, or it is not known."""
        users = self._captured.users.get(self._nodes.get(name) or self._input(name), ())
        return self._captured.nodes.get(users[0]) if len(users) == 1 else None

    def _input(self, name: str) -> str:
        """Return the name of a graph's input; "" for none."""
        number = _number_of(name)
        return self._inputs[number] if 0 <= number < len(self._inputs) else ""

    def _returned(self, text: str) -> Iterator[tuple[str, NodeOrigin]]:
        """Yield the variables that backward code returns as gradients, each with the only place that uses its input."""
        returned = _RETURN.findall(text)
        values = ast.parse(returned[-1], mode="eval").body if returned else None
        if not isinstance(values, ast.Tuple) or len(values.elts) != len(self._inputs):
            return
        for name, value in zip(self._inputs, values.elts, strict=True):
            variables = [
                node.id for node in ast.walk(value) if isinstance(node, ast.Name) and node.id.startswith("buf")
            ]
            users = self._captured.users.get(name, ())
            if len(users) == len(variables) == 1 and users[0] in self._captured.nodes:
                yield variables[0], self._captured.nodes[users[0]]


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
