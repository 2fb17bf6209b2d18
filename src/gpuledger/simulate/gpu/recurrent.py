"""Memory of recurrent layers on a GPU: all layers at once in cuDNN, and fused cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import VirtualMode

aten = torch.ops.aten
_LSTM = 2
_GATES = {0: 1, 1: 1, _LSTM: 4, 3: 3}
"""cuDNN's number of a kind of RNN -> its number of gates."""


def named_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return an operator's arguments by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


_KEPT_A_LAYER = {0: 2, 1: 2, _LSTM: 5, 3: 6}
"""Memory saved for backward per layer, in multiples of its output: gates, cells, a GRU's recurrent half."""
_DROPOUT_STATE_BYTES = 2048 * 24


class _Shape:
    """The sizes of one call of cuDNN's recurrent layers."""

    def __init__(self, given: dict[str, Any]) -> None:
        data = given["input"]
        self.rows = tuple(data.shape[:-1])
        """Sizes of the output without its width: one for packed sequences, otherwise length and batch."""
        if given["batch_first"]:
            self.rows = (self.rows[1], self.rows[0])
        self.batch = int(given["batch_sizes"][0]) if given["batch_sizes"] else self.rows[1]
        self.layers, self.width = given["num_layers"], given["hidden_size"]
        self.directions = 2 if given["bidirectional"] else 1
        self.kind = given["mode"]
        self.is_half = data.element_size() == 2
        self.drops = given["dropout"] > 0 and given["train"] and self.layers > 1
        matrices = [weight for weight in given["weight"] if weight.dim() > 1]
        self.matrices_bytes = sum(weight.numel() for weight in matrices) * data.element_size()
        numbers = math.prod(self.rows) * self.width * self.directions
        self.layer_bytes = numbers * data.element_size()
        self.dropped_bytes = numbers // 4 * (self.layers - 1) if self.drops else 0

    @property
    def reserve_bytes(self) -> int:
        """Return the bytes that forward saves for backward: per layer, between layers, and dropout masks.

        Source: equal to the byte for an LSTM in float32, one in bfloat16 (11 outputs for two layers) and a GRU with
        dropout (13 outputs and two bits per value) on an H200 with cuDNN 9.19. A GRU without dropout was not measured.
        """
        kept = _KEPT_A_LAYER[self.kind] * self.layers + self.layers - 1
        return int(kept * self.layer_bytes) + self.dropped_bytes + 256

    @property
    def workspace_bytes(self) -> int:
        """Return the workspace in bytes: a copy of the weights, seven outputs (six in half precision), and gates.

        Source: three trainings on an H200 (two layers each; LSTM in float32 and bfloat16, bidirectional GRU), within
        1 KiB. The factor 13/64 of the gates was fitted to all three; its parts by length and direction are unknown.
        """
        outputs_bytes = (6 if self.is_half else 7) * self.layer_bytes
        return int(self.matrices_bytes + outputs_bytes + self.layer_bytes * _GATES[self.kind] * 13 // 64) + 1280


def _rnn(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return output, states and the memory saved for backward of cuDNN's recurrent layers."""
    given = named_arguments(func, args, kwargs)
    data, hidden, shape = given["input"], given["hx"], _Shape(given)
    turned = [data.numel() * data.element_size()] if given["batch_first"] else []
    if shape.drops:
        state_bytes = mode.device.card.multiprocessors * _DROPOUT_STATE_BYTES
        mode.device.keep(("cudnn dropout", mode.device.stream), state_bytes, func)
    with mode.device.borrow(turned, func):
        output = mode.make((*shape.rows, shape.width * shape.directions), data)
        last = mode.make((shape.layers * shape.directions, shape.batch, shape.width), hidden)
        cell = mode.make(last.shape if shape.kind == _LSTM else (0,), hidden)
        mode.account(func, (output, last, cell))
        with mode.device.borrow([shape.workspace_bytes], func):
            reserve = mode.make((shape.reserve_bytes if given["train"] else 0,), data, torch.uint8)
            mode.account(func, reserve)
    if given["batch_first"]:
        with mode.fake_mode:
            output = output.transpose(0, 1)
    return output, last, cell, reserve, mode.make((0,), data)


def _rnn_backward(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the gradients of cuDNN's layers: those of the data, then those of all weights in one storage."""
    given = named_arguments(func, args, kwargs)
    data, hidden, shape = given["input"], given["hx"], _Shape(given)
    state_bytes = hidden.numel() * hidden.element_size()
    turned = data.numel() * data.element_size() if given["batch_first"] else 0
    states = [state_bytes] * (2 if shape.kind == _LSTM else 1)
    with mode.device.borrow(states, func):
        with mode.device.borrow([turned, shape.layer_bytes if given["batch_first"] else 0], func):
            made = [mode.make(data.shape, data), mode.make(hidden.shape, hidden)]
            made.append(mode.make(hidden.shape if shape.kind == _LSTM else (0,), hidden))
            mode.account(func, made)
            with mode.device.borrow([shape.workspace_bytes], func):
                pass
        with mode.device.borrow([turned], func):
            flat = mode.make((sum(weight.numel() for weight in given["weight"]),), data)
            mode.account(func, flat)
            with mode.device.borrow([shape.workspace_bytes], func):
                pass
    pieces, start = [], 0
    with mode.fake_mode:
        for weight in given["weight"]:
            pieces.append(flat[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
    return made[0], made[1], made[2], pieces


def _lstm_cell(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return hidden state, cell, and the gates saved for backward. Source: aten/src/ATen/native/cuda/RNN.cu."""
    made = [mode.make(args[2].shape, args[2]) for _ in range(2)]
    made.append(mode.make(args[0].shape, args[0]))
    mode.account(func, made)
    return tuple(made)


def _lstm_cell_backward(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    cell, gates, biased = args[2], args[4], args[5]
    made = [mode.make(gates.shape, gates), mode.make(cell.shape, cell)]
    made.append(mode.make(gates.shape[1:] if biased else (0,), gates))
    mode.account(func, made)
    return tuple(made)


_GRU_KEPT = 5


def _gru_cell(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return hidden state, and five saved values per element. Source: aten/src/ATen/native/cuda/RNN.cu."""
    hidden = args[2]
    made = [mode.make(hidden.shape, hidden)]
    made.append(mode.make((hidden.shape[0], hidden.shape[1] * _GRU_KEPT), hidden))
    mode.account(func, made)
    return tuple(made)


def _gru_cell_backward(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    gradient, biased = args[0], args[2]
    batch, width = gradient.shape
    gates = (batch, width * _GATES[3])
    made = [mode.make(gates, gradient), mode.make(gates, gradient), mode.make(gradient.shape, gradient)]
    made += [mode.make(gates[1:] if biased else (0,), gradient) for _ in range(2)]
    mode.account(func, made)
    return tuple(made)


def _pack(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return sequences concatenated without padding. Lengths that were not computed count as the full length."""
    data, lengths, batch_first = args
    batch, steps = data.shape[:2] if batch_first else (data.shape[1], data.shape[0])
    told = [steps] * batch if isinstance(lengths, FakeTensor) else lengths.tolist()
    sizes = [sum(length > step for length in told) for step in range(max(told))]
    packed = mode.make((sum(sizes), *data.shape[2:]), data)
    mode.account(func, packed)
    return packed, torch.tensor(sizes, dtype=torch.int64)


RECURRENT: dict[Any, Callable[[VirtualMode, Any, Any, Any], Any]] = {
    aten._pack_padded_sequence.default: _pack,
    aten._cudnn_rnn.default: _rnn,
    aten._cudnn_rnn_backward.default: _rnn_backward,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
"""Operator -> its fake kernel."""
