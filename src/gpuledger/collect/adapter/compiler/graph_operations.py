"""What the operators of a graph that Dynamo captured read and write, in place as well.

The values that Dynamo traces with share a storage where those of the program do. So a value has the name of the first
node with its storage, which is that of an input if an input is written.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch

from gpuledger.collect.adapter.program_objects import is_tensor, storage_of

OVERWRITES = ("copy_", "zero_", "fill_", "set_", "_foreach_copy_", "_foreach_zero_")
"""Operators that do not read what the tensor had before. Those of random numbers have a tag."""

MOST_OPERATIONS = 10_000
"""Maximum number of operations of a graph that is followed for what it returns."""

_IN_PLACE = {
    getattr(operator, name) for name in dir(operator) if name.startswith("i") and f"__{name}__" in dir(operator)
}
"""Functions such as ``operator.iadd``, which change a tensor."""


class GraphValue(NamedTuple):
    """The name of a storage in a graph, and the number of elements of a tensor in it; -1 if that is not constant."""

    name: str
    elements: int


class GraphOperation(NamedTuple):
    """One node of a graph.

    Attributes:
        read: Tensors of each argument that it reads.
        written: Lists of tensors that it makes or changes.
        is_new: Whether it changes nothing. What has the storage of an argument is a view then.
    """

    read: tuple[tuple[GraphValue, ...], ...]
    written: tuple[tuple[GraphValue, ...], ...]
    is_new: bool


class GraphFlow(NamedTuple):
    """What the operators of a graph compute.

    Attributes:
        operations: Its operations in order; none if there is nothing to follow.
        results: The tensors that it returns, if it changes no input.
    """

    operations: tuple[GraphOperation, ...] = ()
    results: tuple[GraphValue, ...] = ()


def flow_of(nodes: Iterable[Any]) -> GraphFlow:
    """Return the operations of a captured graph if they change inputs of the graph, or make tensors that it returns."""
    names: dict[int, str] = {}
    found: list[GraphOperation] = []
    inputs: set[str] = set()
    changed: set[str] = set()
    results: list[GraphValue] = []
    for node in nodes:
        values = _values(node, names)
        if node.op == "placeholder":
            inputs.update(one.name for one in values)
        elif node.op.startswith("call_"):
            made = _operation(node, values, names)
            found.append(made)
            if not made.is_new:
                changed.update(one.name for targets in made.written for one in targets)
        elif node.op == "output":
            returned = [_values(one, names) for argument in node.args for one in _nodes_in(argument)]
            results = [one for values in returned for one in values]
    if inputs & changed:
        return GraphFlow(tuple(found))
    makes = any(one.name not in inputs for one in results) and len(found) <= MOST_OPERATIONS
    return GraphFlow(tuple(found), tuple(results)) if makes else GraphFlow()


def _operation(node: Any, results: tuple[GraphValue, ...], names: dict[int, str]) -> GraphOperation:
    arguments = [*node.args, *node.kwargs.values()]
    read = [tuple(value for one in _nodes_in(argument) for value in _values(one, names)) for argument in arguments]
    name = str(getattr(node.target, "__name__", node.target))
    is_set = node.target is operator.setitem
    is_in_place = is_set or node.target in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if is_in_place and read:
        written = read[0]
        return GraphOperation(tuple(read[1:] if is_set or _overwrites(name) else read), (written,), is_new=False)
    return GraphOperation(tuple(read), (results,), is_new=node.kwargs.get("out") is None)


def _overwrites(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, one) for one in packet.overloads()]
    return name in OVERWRITES or any(torch.Tag.nondeterministic_seeded in one.tags for one in overloads)


def _nodes_in(argument: Any) -> Iterator[Any]:
    """Yield the nodes of an argument: of a list, those of its elements."""
    if isinstance(argument, torch.fx.Node):
        yield argument
    elif isinstance(argument, list | tuple):
        for one in argument:
            yield from _nodes_in(one)


def _values(node: Any, names: dict[int, str]) -> tuple[GraphValue, ...]:
    """Return the tensors of a node, each under the name of its storage, which is the node's own if it is new."""
    traced = node.meta.get("example_value")
    found = []
    for number, one in enumerate(traced if isinstance(traced, list | tuple) else (traced,)):
        key = _storage_key(one)
        if key:
            sizes = tuple(one.shape)
            elements = prod(sizes) if all(type(size) is int for size in sizes) else -1
            found.append(
                GraphValue(names.setdefault(key, f"{node.name}[{number}]" if number else str(node.name)), elements)
            )
    return tuple(found)


def _storage_key(value: Any) -> int:
    """Return a number for the storage of a tensor; 0 if it has none."""
    try:
        return int(storage_of(value)._cdata) if is_tensor(value) else 0
    except (RuntimeError, NotImplementedError):  # sparse and wrapper tensors
        return 0
