"""Which tensors of compiled code have no memory: those that its kernels compute where they are needed.

The compiler of ``torch.compile`` merges pointwise operators and reductions into kernels. A tensor is in memory if a
product, a convolution, attention or another library needs it, if it is a small result of a large reduction, or if the
function returns it. Every other tensor is computed in registers, and once more in backward, from those in memory. These
stay until the last tensor that is computed from them is gone.

Source: torch/_inductor/ir.py (``mark_reuse``, ``should_realize_on_reuse``) and torch/_functorch/partitioners.py, 2.11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from gpuledger.simulate.gpu.shortcuts import tensors_in

if TYPE_CHECKING:
    from gpuledger.simulate.gpu.device import SimulatedDevice

aten = torch.ops.aten
MOST_READ = 4
"""A tensor that is computed from more tensors than these is written: ``realize_reads_threshold``."""
_SCALAR_BYTES = 512
_MATERIALIZED = "compiled code"
"""Label of the memory of a tensor that compiled code writes."""

_NAMES = """
    _to_copy clone copy_ cat stack pad constant_pad_nd embedding gather index index_select where masked_fill
    masked_fill_ fill_ zero_ full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full arange
    scalar_tensor flip roll tril triu one_hot expand repeat
    sum mean amax amin max min any all var var_mean std norm linalg_vector_norm logsumexp argmax argmin prod
    _softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm_backward
    cudnn_batch_norm cudnn_batch_norm_backward batch_norm_backward _batch_norm_with_update _fused_rms_norm
    native_dropout native_dropout_backward
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss mse_loss_backward
    smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits soft_margin_loss soft_margin_loss_backward
    glu glu_backward gelu_backward silu_backward mish_backward hardswish_backward hardsigmoid_backward
    hardtanh_backward leaky_relu_backward elu_backward softplus_backward log_sigmoid_forward log_sigmoid_backward
    threshold_backward sigmoid_backward tanh_backward
    avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward
    upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d pixel_shuffle pixel_unshuffle
    slice_backward select_backward slice_scatter select_scatter index_copy_ index_put_ scatter_
"""
_FUSED_NAMES = frozenset(_NAMES.split())
"""Operators that the compiler merges with others, beside those that PyTorch tags as pointwise."""

_REDUCTIONS = frozenset(
    f"aten::{name}" for name in ("native_layer_norm", "native_group_norm", "native_batch_norm", "mean", "var_mean")
)
_IN_MEMORY = frozenset(
    ("bernoulli", "bernoulli_", "rand", "rand_like", "randn", "randn_like", "normal_", "uniform_", "randint")
)
"""Random numbers are not drawn twice, so what is made of them is kept."""


class FusedTensors:
    """The compiled code that runs, and the storages that it has not written.

    Args:
        device: Allocates the storages that are written.
    """

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._depth = 0
        self._backward: set[int] = set()
        self._regions = 0
        self._read_by: dict[int, dict[int, Any]] = {}
        self._of_backward: list[int] = []
        self._returned: dict[int, tuple[int, int]] = {}
        self._zeros: list[int] = []

    @property
    def is_in_function(self) -> bool:
        """Return whether a compiled function runs."""
        return self._depth > 0

    @property
    def is_on(self) -> bool:
        """Return whether the current operator is one of compiled code."""
        return self._depth > 0 or bool(self._backward)

    def takes(self, func: Any) -> bool:
        """Return whether compiled code runs ``func`` in a kernel of its own."""
        if not self.is_on or func.namespace != "aten":
            return False
        name = func._schema.name.partition("::")[2]
        return name not in _IN_MEMORY and (name in _FUSED_NAMES or torch.Tag.pointwise in func.tags)

    # -- storages ---------------------------------------------------------------------------------------------------

    def made(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Follow the results of an operator that compiled code runs in a kernel of its own."""
        device = self._device
        if func._schema.name in _REDUCTIONS and self._depth and torch.is_grad_enabled():
            self._write_reduced(args[0])
        read: dict[int, Any] = {}
        largest_bytes = 0
        for tensor in tensors_in((args, kwargs)):
            if not device.holds(tensor) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            largest_bytes = max(largest_bytes, tensor.numel() * tensor.element_size())
            before = self._read_by.get(storage._cdata)
            for one in (storage,) if before is None else before.values():
                if one.nbytes() > _SCALAR_BYTES:
                    read[one._cdata] = one
        for tensor in tensors_in(result):
            self._follow(func, tensor, read, largest_bytes)

    def _write_reduced(self, tensor: Any) -> None:
        """Write what a norm reads, if it is computed from several tensors: backward would have to do so again."""
        key = tensor.untyped_storage()._cdata if isinstance(tensor, torch.Tensor) else 0
        if len(self._read_by.get(key, ())) > 1:
            self.write(key)

    def _follow(self, func: Any, tensor: torch.Tensor, read: dict[int, Any], largest_bytes: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._read_by:  # written in place
            self._read_by[key] |= {one: kept for one, kept in read.items() if one != key}
        elif self._device.holds(tensor):
            return
        elif storage.nbytes() * 2 < largest_bytes or storage.nbytes() <= _SCALAR_BYTES or tensor.dtype == torch.bool:
            self._device.adopt(tensor, func)
            return
        else:
            self._device.adopt_later(tensor)
            self._read_by[key] = dict(read)
            if self._backward:
                self._of_backward.append(key)
        if len(self._read_by[key]) > MOST_READ:
            self.write(key)

    def write_arguments(self, args: Any, kwargs: Any) -> None:
        """Allocate the arguments of an operator that reads them from memory."""
        if self._read_by or self._returned:
            for tensor in tensors_in((args, kwargs)):
                self.write_tensor(tensor)
                if not self.is_on and tensor.layout is torch.strided and torch.is_grad_enabled():
                    self._returned.pop(tensor.untyped_storage()._cdata, None)

    def write_tensor(self, tensor: torch.Tensor) -> None:
        """Allocate a tensor that is read from memory."""
        if tensor.layout is torch.strided and self._device.holds(tensor):
            self.write(tensor.untyped_storage()._cdata)

    def write(self, key: int) -> None:
        """Allocate a storage that compiled code has not written until now."""
        read = self._read_by.pop(key, None)
        if read is not None:
            self._device.allocate(key, _MATERIALIZED)
            self._free_zeros()

    def forget(self, key: int) -> None:
        """Forget a storage that is gone."""
        self._read_by.pop(key, None)
        self._returned.pop(key, None)

    # -- regions ----------------------------------------------------------------------------------------------------

    @contextmanager
    def region(self, given: Any) -> Iterator[Callable[[Any], None]]:
        """Run compiled code with the tensors in ``given``. Call the function that this yields with what is returned."""
        self._regions += 1
        number = self._regions
        if not self._depth and torch.is_grad_enabled():
            self._await(number, given)
        self._depth += 1
        try:
            yield lambda returned: self._leave(number, returned)
        finally:
            self._depth -= 1

    def _await(self, number: int, given: Any) -> None:
        """Notice when the gradients of all that a function was given are there: then its backward has ended."""
        handles: list[Any] = []

        def ended(place: int, gradient: torch.Tensor) -> None:
            handles[place].remove()
            handles[place] = None
            self.write_tensor(gradient)
            if not any(handles):
                self._end(number)

        for one in tree_leaves(given):
            if isinstance(one, torch.Tensor) and one.requires_grad and self._device.holds(one):
                handles.append(one.register_hook(partial(ended, len(handles))))

    def _leave(self, number: int, returned: Any) -> None:
        """Write what a function returns, and notice when its backward begins."""
        if self._depth > 1:
            return
        for one in tree_leaves(returned):
            if isinstance(one, torch.Tensor):
                self.write_tensor(one)
                if one.requires_grad and torch.is_grad_enabled() and self._device.holds(one):
                    storage = one.untyped_storage()
                    self._returned[storage._cdata] = number, storage.nbytes()
                    one.register_hook(partial(self._begin, number, storage._cdata))

    def _begin(self, number: int, key: int, _gradient: Any) -> None:
        """Begin a function's backward, with zeros as the gradient of each result that the program does not use."""
        self._returned.pop(key, None)
        if number in self._backward:
            return
        if not self._backward:
            torch.autograd.Variable._execution_engine.queue_callback(self._end_all)
        self._backward.add(number)
        unused = [one for one, (region, _) in self._returned.items() if region == number]
        for one in unused:
            self._zeros.append(self._device.malloc(self._returned.pop(one)[1], _MATERIALIZED))

    def _free_zeros(self) -> None:
        while self._zeros:
            self._device.allocator.free(self._zeros.pop())

    def _end(self, number: int) -> None:
        self._backward.discard(number)
        if not self._backward:
            self._end_all()

    def _end_all(self) -> None:
        """Write the gradients that are left, such as those of weights."""
        self._backward.clear()
        for key in self._of_backward:
            self.write(key)
        self._of_backward.clear()
        self._free_zeros()
