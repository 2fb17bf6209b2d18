"""Memory of recurrent layers on a GPU: all layers at once in cuDNN, and fused cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuledger.simulate.temporaries.recurrent_sizes import LSTM, RecurrentShape

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.dispatch import SimulatedMode

aten = torch.ops.aten


def named_arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return an operator's arguments by name."""
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


_DROPOUT_STATE_BYTES = 2048 * 24


def _shape_of(given: dict[str, Any]) -> RecurrentShape:
    """Return the sizes of a call of cuDNN's layers, from its arguments."""
    data, sizes = given["input"], given["batch_sizes"]
    turned = given["batch_first"] and not sizes
    return RecurrentShape(
        kind=given["mode"],
        item_bytes=data.element_size(),
        directions=2 if given["bidirectional"] else 1,
        layers=given["num_layers"],
        rows=math.prod(data.shape[:-1]),
        batch=int(sizes[0]) if sizes else data.shape[0 if turned else 1],
        inputs=data.shape[-1],
        hidden=given["hidden_size"],
        projection=given["proj_size"],
        drops=given["dropout"] > 0 and given["train"],
        has_biases=any(weight.dim() == 1 for weight in given["weight"]),
        longest=len(sizes),
        is_bfloat16=data.dtype == torch.bfloat16,
        trains=bool(given["train"]),
    )


def _weights_copy(mode: SimulatedMode, given: dict[str, Any], shape: RecurrentShape) -> torch.Tensor:
    """Return the copy of the weights that forward makes and saves if the layers have no biases.

    cuDNN has biases in any case, so that the weights of such layers are not laid out as it requires.
    """
    copied_bytes = 0 if shape.has_biases else shape.weights_bytes + shape.biases_bytes
    return mode.make((copied_bytes // shape.item_bytes,), given["input"])


def _copied_bytes(mode: SimulatedMode, given: dict[str, Any], tensor: Any) -> int:
    """Return the bytes of the copy that cuDNN gets of a tensor if it is not contiguous with time first, otherwise 0."""
    with mode.fake_mode:
        turned = tensor.transpose(0, 1) if given["batch_first"] and not given["batch_sizes"] else tensor
    return 0 if turned.is_contiguous() else tensor.numel() * tensor.element_size()


def _rows_of(given: dict[str, Any]) -> tuple[int, ...]:
    """Return the output's sizes without its width: one for packed sequences, otherwise length and batch."""
    rows = tuple(given["input"].shape[:-1])
    return (rows[1], rows[0]) if given["batch_first"] else rows


def _rnn(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return output, states and the memory saved for backward of cuDNN's recurrent layers."""
    given = named_arguments(func, args, kwargs)
    data, hidden, shape = given["input"], given["hx"], _shape_of(given)
    if shape.drops and shape.layers > 1:
        state_bytes = mode.device.sizing.one(lambda gpu: gpu.multiprocessors * _DROPOUT_STATE_BYTES)
        mode.device.keep(("cudnn dropout", mode.device.stream), state_bytes, func)
    with mode.device.borrow([_copied_bytes(mode, given, data)], func):
        output = mode.make((*_rows_of(given), shape.width * shape.directions), data)
        parts = shape.layers * shape.directions
        last = mode.make((parts, shape.batch, shape.width), hidden)
        cell = mode.make((parts, shape.batch, shape.hidden) if shape.kind == LSTM else (0,), hidden)
        copied = _weights_copy(mode, given, shape)
        mode.account(func, (output, last, cell, copied))
        with mode.device.borrow([shape.workspace_bytes()], func):
            reserve = mode.make((shape.reserve_bytes if given["train"] else 0,), data, torch.uint8)
            mode.account(func, reserve)
    if given["batch_first"]:
        with mode.fake_mode:
            output = output.transpose(0, 1)
    return output, last, cell, reserve, copied


def _rnn_backward(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return the gradients of cuDNN's layers: those of the data, then those of all weights in one storage.

    Results without a gradient get zeros for it. Source: aten/src/ATen/native/cudnn/RNN.cpp.
    """
    given = named_arguments(func, args, kwargs)
    data, hidden, shape = given["input"], given["hx"], _shape_of(given)
    cell_size = (*hidden.shape[:-1], shape.hidden) if shape.kind == LSTM else (0,)
    results = {
        "grad_output": shape.output_bytes,
        "grad_hy": hidden.numel() * hidden.element_size(),
        "grad_cy": math.prod(cell_size) * hidden.element_size(),
    }
    zeros = [size for name, size in results.items() if given[name] is None]
    turned = _copied_bytes(mode, given, data)
    gradient = given["output"] if given["grad_output"] is None else given["grad_output"]
    workspace_bytes = shape.workspace_bytes(backward=True)
    with mode.device.borrow(zeros, func):
        with mode.device.borrow([turned, _copied_bytes(mode, given, gradient)], func):
            made = [mode.make(data.shape, data), mode.make(hidden.shape, hidden)]
            made.append(mode.make(cell_size, hidden))
            mode.account(func, made)
            with mode.device.borrow([workspace_bytes], func):
                pass
        with mode.device.borrow([turned], func):
            gradients = _weight_gradients(mode, func, given, shape, workspace_bytes)
    return made[0], made[1], made[2], gradients


def _weight_gradients(
    mode: SimulatedMode, func: Any, given: dict[str, Any], shape: RecurrentShape, workspace_bytes: int
) -> list[torch.Tensor]:
    """Return the gradients of all weights: parts of one storage, or copies of them if the layers have no biases."""
    weights, data = given["weight"], given["input"]
    if not shape.has_biases:
        with mode.device.borrow([shape.weights_bytes + shape.biases_bytes, workspace_bytes], func):
            copies = [mode.make(weight.shape, data) for weight in weights]
            mode.account(func, copies)
        return copies
    flat = mode.make((sum(weight.numel() for weight in weights),), data)
    mode.account(func, flat)
    with mode.device.borrow([workspace_bytes], func):
        pass
    with mode.fake_mode:
        pieces = flat.split([weight.numel() for weight in weights])
        return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]


def _lstm_cell(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return hidden state, cell, and the gates saved for backward. Source: aten/src/ATen/native/cuda/RNN.cu."""
    made = [mode.make(args[2].shape, args[2]) for _ in range(2)]
    made.append(mode.make(args[0].shape, args[0]))
    mode.account(func, made)
    return tuple(made)


def _lstm_cell_backward(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    cell, gates, biased = args[2], args[4], args[5]
    made = [mode.make(gates.shape, gates), mode.make(cell.shape, cell)]
    made.append(mode.make(gates.shape[1:] if biased else (0,), gates))
    mode.account(func, made)
    return tuple(made)


_GRU_GATES, _GRU_KEPT = 3, 5


def _gru_cell(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return hidden state, and five saved values per element. Source: aten/src/ATen/native/cuda/RNN.cu."""
    hidden = args[2]
    made = [mode.make(hidden.shape, hidden)]
    made.append(mode.make((hidden.shape[0], hidden.shape[1] * _GRU_KEPT), hidden))
    mode.account(func, made)
    return tuple(made)


def _gru_cell_backward(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    gradient, biased = args[0], args[2]
    batch, width = gradient.shape
    gates = (batch, width * _GRU_GATES)
    made = [mode.make(gates, gradient), mode.make(gates, gradient), mode.make(gradient.shape, gradient)]
    made += [mode.make(gates[1:] if biased else (0,), gradient) for _ in range(2)]
    mode.account(func, made)
    return tuple(made)


def _pack(mode: SimulatedMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Return sequences concatenated without padding. Lengths that were not computed count as the full length."""
    data, lengths, batch_first = args
    batch, steps = data.shape[:2] if batch_first else (data.shape[1], data.shape[0])
    known = [steps] * batch if isinstance(lengths, FakeTensor) else lengths.tolist()
    sizes = [sum(length > step for length in known) for step in range(max(known))]
    packed = mode.make((sum(sizes), *data.shape[2:]), data)
    mode.account(func, packed)
    return packed, torch.tensor(sizes, dtype=torch.int64)


RECURRENT: dict[Any, Callable[[SimulatedMode, Any, Any, Any], Any]] = {
    aten._pack_padded_sequence.default: _pack,
    aten._cudnn_rnn.default: _rnn,
    aten._cudnn_rnn_backward.default: _rnn_backward,
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}
"""Operator -> its fake kernel."""
