"""Read the code of ``torch.fx`` graph modules, as those of ``torch.export``: which module each line computes."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn

from gpuledger.collect.adapter.compiler.graph_nodes import NodeOrigin, place_of_node
from gpuledger.collect.adapter.program_objects import attributes_of, is_exactly

_CALLS = ("call_function", "call_method")
"""Kinds of nodes that run an operator. One that calls a module is observed as that call."""


def places_of_traced(module: nn.Module) -> dict[tuple[str, int], NodeOrigin]:
    """Return ``(file, line)`` -> place of the operators in the code of a graph module; empty for any other module."""
    kind = getattr(sys.modules.get("torch.fx.graph_module"), "GraphModule", None)
    if kind is None or not issubclass(type(module), kind):
        return {}
    own, forward = attributes_of(module), vars(type(module)).get("forward")
    code, graph = own.get("_code"), own.get("_graph")
    if (
        type(forward) is not FunctionType
        or type(code) is not str
        or not is_exactly(graph, sys.modules["torch.fx"].Graph)
    ):
        return {}
    places = {str(node.name): place_of_node(node) for node in graph.nodes if node.op in _CALLS}  # type: ignore[union-attr]
    file = forward.__code__.co_filename
    return {(file, line): places[name] for name, line in _assigned(code) if name in places}


def _assigned(code: str) -> Iterator[tuple[str, int]]:
    """Yield the variables to which the function of a text assigns results, each with its line."""
    try:
        tree: Any = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return
    for one in (inner for function in tree.body if isinstance(function, ast.FunctionDef) for inner in function.body):
        is_freed = isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)  # ``x = None``, on the same line
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and not is_freed:
            yield one.targets[0].id, one.lineno
