"""Operators of CUDA that have no fake kernel, or one for the CPU only: what they make, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpuledger.virtual.dispatch import VirtualMode

aten = torch.ops.aten


def _value(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.placeholder(args[0])


def _unscale(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    return None


def _rnn(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """cuDNN's recurrent layers: output, states, and the reserve that backward reads.

    Source: reserve sizes of an H200 with cuDNN 9.19 (LSTM); for the others the gates they keep.
    """
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    data, hidden = given["input"], given["hx"]
    layers, width, both = given["num_layers"], given["hidden_size"], 2 if given["bidirectional"] else 1
    steps, batch = (data.shape[1], data.shape[0]) if given["batch_first"] else data.shape[:2]
    shape = (batch, steps, width * both) if given["batch_first"] else (steps, batch, width * both)
    output = mode.make(shape, data)
    if given["batch_first"]:
        output = mode.make((steps, batch, width * both), data).transpose(0, 1)
    mode.account(func, output)
    last = mode.make((layers * both, batch, width), hidden)
    mode.account(func, last)
    cell = mode.make((layers * both, batch, width) if given["mode"] == 2 else (0,), hidden)
    mode.account(func, cell)
    gates = {0: 1, 1: 1, 2: 6, 3: 5}[given["mode"]]
    kept = layers * both * steps * batch * width * gates * data.element_size() if given["train"] else 0
    reserve = mode.make((kept,), data, torch.uint8)
    weights = mode.make((sum(weight.numel() for weight in given["weight"]),), data)
    mode.account(func, (reserve, weights))
    return output, last, cell, reserve, weights


def _rnn_backward(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    data, hidden = given["input"], given["hx"]
    made = [mode.make(data.shape, data), mode.make(hidden.shape, hidden)]
    cell = given.get("cx")
    made.append(mode.make(cell.shape if cell is not None else (0,), hidden))
    flat = mode.make((given["weight_buf"].numel(),), data)
    mode.account(func, (*made, flat))
    pieces, start = [], 0
    with mode.fake_mode:
        for weight in given["weight"]:
            pieces.append(flat[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
    return made[0], made[1], made[2], pieces


KERNELS: dict[Any, Callable[[VirtualMode, Any, Any, Any], Any]] = {
    aten._local_scalar_dense.default: _value,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten._cudnn_rnn.default: _rnn,
    aten._cudnn_rnn_backward.default: _rnn_backward,
}
"""Operator -> what stands in for it; ``NotImplemented`` leaves it to torch's own fake kernel."""
