"""Operators of a layer, from the layer's printed form, which is parsed and not evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuledger.operator_key import OperatorKey, tensor_bytes
from gpuledger.ops.workloads.capture import operators_of
from gpuledger.ops.workloads.captures import CapturedDevice
from gpuledger.ops.workloads.models import without_initial_weights
from gpuledger.simulate.gpu.dispatch import NotModelledError


@dataclass(frozen=True)
class LayerOperators:
    """The single operator of a layer's forward pass, and all operators of its backward pass, with repetitions."""

    forward: OperatorKey
    backward: tuple[OperatorKey, ...] = ()


class LayerReader:
    """Rebuilds printed layers on a simulated GPU, each distinct one once.

    Args:
        place: The simulated GPU.
    """

    def __init__(self, place: CapturedDevice) -> None:
        self._place = place
        self._known: dict[tuple[str, tuple[int, ...], bool], LayerOperators | str] = {}

    def operators(self, text: str, size: tuple[int, ...], *, is_evaluated: bool) -> LayerOperators:
        """Return the operators that a layer runs.

        Args:
            text: The printed layer.
            size: Size of its input.
            is_evaluated: If True, forward runs in evaluation mode without gradients, and backward is included. If
                False, only forward runs, in training mode with gradients.

        Raises:
            ValueError: it is not a layer of torch.nn, does not accept the input, or its forward is not one operator.
        """
        asked = (text, size, is_evaluated)
        if asked not in self._known:
            try:
                with without_initial_weights(), torch.device(self._place.device):
                    layer = layer_of(text)
                self._known[asked] = self._follow(layer, size, is_evaluated)
            except ValueError as error:
                self._known[asked] = str(error)
        found = self._known[asked]
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def _follow(self, layer: nn.Module, size: tuple[int, ...], is_evaluated: bool) -> LayerOperators:
        data = torch.randn(size, device=self._place.device)
        if not is_evaluated:
            return LayerOperators(_only(layer, self._operators(layer, lambda: layer.train()(data))))
        with torch.no_grad():
            forward = _only(layer, self._operators(layer, lambda: layer.eval()(data)))
        data.requires_grad_()
        results: list[torch.Tensor] = []
        self._operators(layer, lambda: results.append(layer.train()(data)))
        gradient = torch.randn_like(results[0])
        return LayerOperators(forward, tuple(self._operators(layer, lambda: results[0].backward(gradient))))

    def _operators(self, layer: nn.Module, call: Callable[[], Any]) -> list[OperatorKey]:
        try:
            found = operators_of(call, self._place.holds, self._place.device, self._place.renamed)
        except (RuntimeError, TypeError, ValueError, NotModelledError) as error:
            raise ValueError(f"{type(layer).__name__}: {' '.join(str(error).split())}") from error
        return [key for key in found if max(map(tensor_bytes, key.tensors()), default=0) > _COUNTER_BYTES]


_COUNTER_BYTES = 8
"""Bytes of a batch norm's counter of batches, which is not part of the measurement."""


_OF_MANY = (nn.RNNBase, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.AdaptiveLogSoftmaxWithLoss)
"""Layers with as many sublayers as their arguments say."""


def _only(layer: nn.Module, keys: list[OperatorKey]) -> OperatorKey:
    if len(keys) != 1:
        raise ValueError(f"{type(layer).__name__}: runs {len(keys)} operators, not one")
    return keys[0]


def layer_of(text: str) -> nn.Module:
    """Return the layer with the printed form ``text``.

    Raises:
        ValueError: it is not a layer of torch.nn, or its arguments are not valid.
    """
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("not a printed layer") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError("not a printed layer")
    name = call.func.id
    kind = getattr(nn, name, None)
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"{name}: not a layer of torch.nn")
    if issubclass(kind, _OF_MANY):
        raise ValueError(f"{name}: runs more than one operator")
    try:
        layer: nn.Module = kind(
            *map(_literal, call.args), **{str(one.arg): _literal(one.value) for one in call.keywords}
        )
    except (TypeError, ValueError, RuntimeError, MemoryError, OverflowError) as error:
        raise ValueError(f"{name}: {' '.join(str(error).split())}") from error
    return layer


def _literal(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
