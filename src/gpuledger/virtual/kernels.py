"""Operators of CUDA that have no fake kernel, or one for the CPU only: what they make, written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from gpuledger.virtual.convolutions import backward_bytes

if TYPE_CHECKING:
    from gpuledger.virtual.dispatch import VirtualMode

aten = torch.ops.aten


def _value(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.placeholder(args[0])


def _unscale(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    return None


_LSTM = 2
_GATES = {0: 1, 1: 1, _LSTM: 4, 3: 3}
"""cuDNN's number of a kind of RNN -> its gates."""


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


class _Shape:
    """Sizes of one call of cuDNN's recurrent layers."""

    def __init__(self, given: dict[str, Any]) -> None:
        data = given["input"]
        self.steps, self.batch = (data.shape[1], data.shape[0]) if given["batch_first"] else data.shape[:2]
        self.layers, self.width = given["num_layers"], given["hidden_size"]
        self.directions = 2 if given["bidirectional"] else 1
        self.kind = given["mode"]
        self.weights_bytes = sum(weight.numel() for weight in given["weight"]) * data.element_size()
        self.layer_bytes = self.steps * self.batch * self.width * self.directions * data.element_size()

    @property
    def reserve_bytes(self) -> int:
        """Return what forward keeps for backward: gates and cells of each layer, and what passes between layers.

        Source: 11 times the output of a two-layer LSTM, exact on an H200 with cuDNN 9.19.
        """
        kept = _GATES[self.kind] + (1 if self.kind == _LSTM else 2 if self.kind == 3 else 0)
        return int((kept * self.layers + self.layers - 1) * self.layer_bytes) + 256

    @property
    def workspace_bytes(self) -> int:
        """Return what a pass holds while it runs: the weights again, and gates.

        Source: 118.5 MiB for a two-layer LSTM with 56 MiB of weights and an output of 8 MiB, exact on an H200; the
        share of the output is taken to go with the gates.
        """
        return int(self.weights_bytes) + int(7.8046875 * self.layer_bytes * (_GATES[self.kind] / 4)) + 512


def _rnn(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Recurrent layers of cuDNN: output, states, and the reserve that backward reads."""
    given = _named(func, args, kwargs)
    data, hidden, shape = given["input"], given["hx"], _Shape(given)
    turned = [data.numel() * data.element_size()] if given["batch_first"] else []
    with mode.device.borrow(turned, func):
        output = mode.make((shape.steps, shape.batch, shape.width * shape.directions), data)
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
    """Gradients of cuDNN's layers: those of the data first, then those of all weights in one piece."""
    given = _named(func, args, kwargs)
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


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's entries fill one range of memory, each place once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _add(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Autograd adds gradients in place where nobody else holds the first; for a tensor subclass it never does."""
    first, second = args[0], args[1]
    if not mode.device.in_engine or torch.is_grad_enabled() or kwargs or len(args) > 2:
        return NotImplemented
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return NotImplemented
    if first.shape != second.shape or first.dtype != second.dtype or first.requires_grad:
        return NotImplemented
    if not _is_dense(first) or mode.called_from_python():
        return NotImplemented
    with mode.fake_mode:
        return first.detach()


def _convolution_backward(mode: VirtualMode, func: Any, args: Any, kwargs: Any) -> Any:
    """The data's gradient first, then the weight's, each with what cuDNN holds for it; then the bias's."""
    made = mode.fake(func, args, kwargs)
    for result, space_bytes in zip(made, (*backward_bytes(args, mode.device.card.multiprocessors), 0), strict=True):
        if result is not None:
            mode.account(func, result)
            with mode.device.borrow((space_bytes,), func):
                pass
    return made


KERNELS: dict[Any, Callable[[VirtualMode, Any, Any, Any], Any]] = {
    aten._local_scalar_dense.default: _value,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten._cudnn_rnn.default: _rnn,
    aten._cudnn_rnn_backward.default: _rnn_backward,
    aten.add.Tensor: _add,
    aten.convolution_backward.default: _convolution_backward,
}
"""Operator -> what stands in for it; ``NotImplemented`` leaves it to torch's own fake kernel."""
