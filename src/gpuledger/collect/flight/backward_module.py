"""The module whose backward runs in a thread, where no frame shows it: autograd runs on a thread of its own."""

from __future__ import annotations

from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.program_objects import class_name
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.flight.graphs import following_nodes

_LEAF = "AccumulateGrad"
_CHANGED = ("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ToCopyBackward0")
"""Nodes between a layer and its weight: the transposed weight of a linear layer, or a weight cast by autocast."""
_MOST_CHANGES = 3


def module_in_backward(registry: ModuleRegistry) -> int | None:
    """Return the id of the module whose parameters the running autograd node uses; None if it uses none.

    Of several modules, as in compiled code, it is the innermost one that contains all of them.

    Source: the node's edges to gradient accumulators. Layers without parameters are not known.
    """
    node = torch_private.current_node()
    used = [] if node is None else _parameters_of(node)
    if not used:
        return None
    owners = {number for held, _, number in registry.parameters if any(held() is one for one in used)}
    found = registry.around(owners) if owners else -1
    return found if found >= 0 else None


def _parameters_of(node: Any) -> list[torch.Tensor]:
    """Return the parameters that a node computes the gradients of, or to which it adds them."""
    if class_name(type(node)) == _LEAF:
        return [node.variable]
    found = []
    for following in following_nodes(node):
        for _ in range(_MOST_CHANGES):
            if class_name(type(following)) not in _CHANGED or len(following_nodes(following)) != 1:
                break
            (following,) = following_nodes(following)
        if class_name(type(following)) == _LEAF:
            found.append(following.variable)
    return found
