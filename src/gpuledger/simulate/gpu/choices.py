"""CUDA's choices in torch functions that depend on a tensor's device, which is the CPU for fake tensors."""

from __future__ import annotations

import itertools
import os
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

from gpuledger.collect.adapter.dispatch_modes import run_outside_modes
from gpuledger.collect.adapter.program_objects import items_of
from gpuledger.simulate.gpu.functions import CPU, SimulatedFunctions, as_device, cast_for_autocast
from gpuledger.simulate.gpu.fused_kernels import patch_attention, patch_flex_attention, patch_norms
from gpuledger.simulate.gpu.lazy import place_lazy
from gpuledger.simulate.gpu.nested import place_nested
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.threads import EngineThread

aten = torch.ops.aten
_TORCH = os.path.dirname(torch.__file__) + os.sep
_RNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_RNN_GATES = (1, 1, 4, 3)
_AUTOCAST_DTYPE = torch.float16
"""In which autocast runs cuDNN's recurrent layers, whatever its own dtype is.

Source: aten/src/ATen/cudnn/AutocastRNN.cpp.
"""


def install_choices(patches: Patches, functions: SimulatedFunctions, say: Callable[[str], None]) -> None:
    """Install CUDA's choices."""
    _patch_dropout(patches, functions)
    patch_attention(patches, functions)
    patch_flex_attention(patches, functions)
    _patch_recurrent(patches, functions)
    _patch_softmax(patches, functions)
    _patch_ctc(patches, functions)
    patch_norms(patches, functions)
    _patch_optimizers(patches)
    _patch_parameters(patches, functions)
    _patch_devices(patches, functions)
    _patch_engine(patches, functions)
    _patch_programs(patches, say)
    patches.put(torch, "_subclasses", _Subclasses(torch._subclasses))
    place_lazy(patches)
    place_nested(patches, functions)


class _NeverFake:
    """A class of which no tensor is an instance."""


class _Subclasses(types.ModuleType):
    """``torch._subclasses`` with another ``FakeTensor`` for the callers outside torch.

    Libraries such as transformers choose other code for fake tensors. The tensors of a simulated GPU are those of an
    ordinary run.
    """

    def __init__(self, plain: types.ModuleType) -> None:
        super().__init__(plain.__name__)
        self.__dict__["_plain"] = plain

    def __getattr__(self, name: str) -> Any:
        if name == "FakeTensor" and not sys._getframe(1).f_code.co_filename.startswith(_TORCH):
            return _NeverFake
        return getattr(self.__dict__["_plain"], name)


def _patch_dropout(patches: Patches, functions: SimulatedFunctions) -> None:
    """Use one fused kernel for dropout, which keeps a boolean mask."""
    plain = F.dropout

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:  # noqa: A002
        if not functions.on_card(input) or not training or p in (0.0, 1.0) or inplace:
            return plain(input, p, training, inplace)
        return aten.native_dropout(input, p, True)[0]

    def short(input: Any, p: float, train: bool) -> Any:  # noqa: A002
        return dropout(input, p, train)

    patches.put(F, "dropout", dropout)
    patches.put(torch, "dropout", short)


def _patch_recurrent(patches: Patches, functions: SimulatedFunctions) -> None:
    """Use cuDNN for all layers of an RNN at once, and a fused kernel for a single cell."""
    for name, mode in _RNN_MODES.items():
        patches.put(torch._VF, name, _all_layers(functions, getattr(torch._C._VariableFunctions, name), mode))
    for name, fused in (("lstm_cell", aten._thnn_fused_lstm_cell), ("gru_cell", aten._thnn_fused_gru_cell)):
        patches.put(torch._VF, name, _one_cell(functions, getattr(torch._C._VariableFunctions, name), fused))
    patches.put(torch._VF, "_pad_packed_sequence", _pad_packed(functions, torch._VF._pad_packed_sequence))
    patches.put(nn.RNNBase, "flatten_parameters", lambda module: _flatten_weights(functions, module))


def _all_layers(functions: SimulatedFunctions, plain: Callable[..., Any], mode: int) -> Callable[..., Any]:
    def recurrent(*args: Any) -> Any:
        packed = isinstance(args[3], (list, tuple))
        if not functions.on_card(args[0]):
            return plain(*args)
        if packed:
            data, sizes, hidden, weights, _biased, layers, dropout, train, both = args
            batch_first = False
        else:
            data, hidden, weights, _biased, layers, dropout, train, both, batch_first = args
            sizes = []
        h0, c0 = hidden if mode == 2 else (hidden, None)
        weights = _recast(functions, weights)
        data, h0 = cast_for_autocast(data, h0, dtype=_AUTOCAST_DTYPE)
        c0 = cast_for_autocast(c0, dtype=_AUTOCAST_DTYPE)[0] if c0 is not None else None
        hidden_size = weights[0].shape[0] // _RNN_GATES[mode]
        projected = h0.shape[-1] if h0.shape[-1] != hidden_size else 0
        made = aten._cudnn_rnn(
            data, weights, len(weights) // (layers * (2 if both else 1)), None, h0, c0, mode, hidden_size, projected,
            layers, batch_first, dropout, train, both, sizes, None,
        )  # fmt: skip
        return made[:3] if mode == 2 else made[:2]

    return recurrent


class _Together(torch.autograd.Function):
    """Weights in another dtype, in one storage."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Any) -> Any:
        ctx.dtypes = [weight.dtype for weight in weights]
        flat = torch.empty(sum(weight.numel() for weight in weights), dtype=dtype, device="cuda")
        pieces = flat.split([weight.numel() for weight in weights])
        return tuple(piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, *(
            None if gradient is None else gradient.to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )


def _recast(functions: SimulatedFunctions, weights: Any) -> list[Any]:
    """Return an RNN's weights as autocast passes them to cuDNN: in one storage, which cuDNN requires."""
    if not torch.is_autocast_enabled("cuda"):
        return list(weights)
    if all(weight.dtype in (_AUTOCAST_DTYPE, torch.float64) for weight in weights):
        return list(weights)
    return list(_Together.apply(_AUTOCAST_DTYPE, *weights))  # type: ignore[no-untyped-call]


def _one_cell(functions: SimulatedFunctions, plain: Callable[..., Any], fused: Any) -> Callable[..., Any]:
    def cell(data: Any, hidden: Any, *weights: Any) -> Any:
        if not functions.on_card(data):
            return plain(data, hidden, *weights)
        pair = isinstance(hidden, (list, tuple))
        before = hidden[0] if pair else hidden
        of_data, of_before = F.linear(data, weights[0]), F.linear(before, weights[1])
        if pair:
            return fused(of_data, of_before, cast_for_autocast(hidden[1])[0], *weights[2:])[:2]
        return fused(of_data, of_before, cast_for_autocast(before)[0], *weights[2:])[0]

    return cell


def _pad_packed(functions: SimulatedFunctions, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return padding in Python. In C++ it writes lengths into a new tensor, which has no data here."""

    def pad(data: Any, batch_sizes: Any, batch_first: bool, padding: float, total: int) -> Any:
        if not functions.on_card(data):
            return plain(data, batch_sizes, batch_first, padding, total)
        sizes = batch_sizes.tolist()
        padded = data.new_full((max(total, len(sizes)), sizes[0], *data.shape[1:]), padding)
        row = start = 0
        for size, group in itertools.groupby(sizes):
            steps = len(list(group))
            piece = data[row : row + steps * size].view(steps, size, *data.shape[1:])
            padded[start : start + steps, :size] = piece
            row, start = row + steps * size, start + steps
        lengths = torch.tensor([sum(size > place for size in sizes) for place in range(sizes[0])])
        return padded.transpose(0, 1) if batch_first else padded, lengths

    return pad


def _patch_softmax(patches: Patches, functions: SimulatedFunctions) -> None:
    """Convert float16 to float32 in the kernel of softmax, as CUDA does. It copies bfloat16 before."""
    for name, operator in (("softmax", aten._softmax), ("log_softmax", aten._log_softmax)):
        plain = getattr(torch, name)

        def fused(input: Any, dim: Any = None, dtype: Any = None, *, plain: Any = plain, op: Any = operator) -> Any:  # noqa: A002
            if dtype == torch.float32 and functions.on_card(input) and input.dtype == torch.float16:
                return op(input, dim, True)
            return plain(input, dim, dtype=dtype)

        patches.put(torch, name, fused)


def _patch_ctc(patches: Patches, functions: SimulatedFunctions) -> None:
    """Pass lengths as tensors, because torch computes with lists of them in C++."""
    plain = torch.ctc_loss

    def ctc_loss(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if functions.on_card(log_probs):
            input_lengths, target_lengths = (
                one if isinstance(one, torch.Tensor) else torch.tensor(one, device=CPU)
                for one in (input_lengths, target_lengths)
            )
        return plain(log_probs, targets, input_lengths, target_lengths, *args, **kwargs)

    patches.put(torch, "ctc_loss", ctc_loss)


def _patch_optimizers(patches: Patches) -> None:
    """Use foreach optimizers, the default on a GPU. Torch would not, because fake tensors are a subclass."""

    def choose(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        return (False, False) if differentiable else (use_fused, not use_fused)

    for name, module in items_of(sys.modules):
        if name.startswith(("torch.optim", "torch.nn.utils", "torch.utils._foreach_utils")) and module is not None:
            if hasattr(module, "_default_to_fused_or_foreach"):
                patches.put(module, "_default_to_fused_or_foreach", choose)
            if hasattr(module, "_has_foreach_support"):
                patches.put(module, "_has_foreach_support", lambda tensors, device: True)
            if hasattr(module, "_device_has_foreach_support"):
                patches.put(module, "_device_has_foreach_support", lambda device: True)

    def always(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    patches.put(torch.amp.grad_scaler.GradScaler, "_maybe_opt_step", always)


def _patch_parameters(patches: Patches, functions: SimulatedFunctions) -> None:
    """Create parameters as fake tensors, so that moving a model keeps each parameter's object."""
    plain_new = nn.Parameter.__new__
    fake_mode = functions.mode.fake_mode

    def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (torch.Tensor, nn.Parameter) and data.device.type == "cpu":
            real = data
            data = run_outside_modes(lambda: fake_mode.from_tensor(real.detach()))
        return plain_new(cls, data, requires_grad)

    patches.put(nn.Parameter, "__new__", staticmethod(new))
    patches.put(nn.Module, "_apply", _convert)


def _convert(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
    """Do what ``nn.Module._apply`` does. The memory recording observes this function, too."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            _move_parameter(module, name, parameter, fn)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _move_parameter(module: nn.Module, name: str, parameter: Any, fn: Callable[[Any], Any]) -> None:
    """Move a parameter as torch does for plain tensors: replace the data and keep the object.

    A tensor on the device "meta" has no data, so a parameter that moves there or away from there is a new object.
    """
    with torch.no_grad():
        moved = fn(parameter)
        moved_gradient = None if parameter.grad is None else fn(parameter.grad)
    is_other = (moved.device.type == "meta") != (parameter.device.type == "meta")
    if is_other or isinstance(moved, FakeTensor) != isinstance(parameter, FakeTensor):
        parameter = module._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
    elif moved is not parameter:
        parameter.data = moved
    if moved_gradient is not None:
        parameter.grad = moved_gradient


def _patch_devices(patches: Patches, functions: SimulatedFunctions) -> None:
    """Report the GPU as the device of fake tensors to the program, and the CPU to torch's own code."""
    plain = vars(FakeTensor)["device"].fget
    disabled = torch._C._is_torch_function_all_disabled

    def device_of(tensor: Any) -> torch.device:
        if not disabled() and functions.device.holds(tensor):
            return functions.device.place
        return plain(tensor)  # type: ignore[no-any-return]

    def set_default(device: Any) -> None:
        wanted = None if device is None else as_device(device)
        on_card = wanted is not None and wanted.type == "cuda"
        functions.default_device = functions.device.place if on_card else None
        plain_set(None if on_card else wanted)

    plain_set, plain_get = torch.set_default_device, torch.get_default_device
    plain_list = FakeTensor.tolist

    def tolist(tensor: Any) -> Any:
        known = functions.mode.values.of(tensor, reads=True)
        return plain_list(tensor) if known is None else known.tolist()

    patches.put(FakeTensor, "device", property(device_of))
    patches.put(FakeTensor, "tolist", tolist)
    patches.put(torch, "set_default_device", set_default)
    patches.put(torch, "get_default_device", lambda: functions.default_device or plain_get())


def _patch_engine(patches: Patches, functions: SimulatedFunctions) -> None:
    """Enable the mode during backward, too: checkpoints and hooks run the program's own code there."""
    plain = torch.autograd.graph._engine_run_backward
    here, where, engine = functions.device.of_thread, functions.where, EngineThread()

    def _engine_run_backward(
        outputs: Any, gradients: Any, keep_graph: bool, create_graph: bool, *args: Any, **kwargs: Any
    ) -> Any:
        before = where.around, here.in_backward
        is_outer = not here.in_backward and here.number == 0 and functions.any_on_card(outputs)
        where.around = here.in_backward = True
        try:
            with functions, engine.running(outputs, creates_graph=create_graph) if is_outer else nullcontext():
                return plain(outputs, gradients, keep_graph, create_graph, *args, **kwargs)
        finally:
            where.around, here.in_backward = before

    patches.put(torch.autograd.graph, "_engine_run_backward", _engine_run_backward)
    patches.put(torch.autograd, "_engine_run_backward", _engine_run_backward)


def _flatten_weights(functions: SimulatedFunctions, module: Any) -> None:
    """Put an RNN's weights into one storage, which cuDNN requires."""
    weights = [weight for weight in module._flat_weights if isinstance(weight, torch.Tensor)]
    together = {weight.untyped_storage()._cdata for weight in weights}
    if not weights or len(together) == 1 or not all(functions.on_card(weight) for weight in weights):
        return
    flat = torch.empty(sum(weight.numel() for weight in weights), dtype=weights[0].dtype, device="cuda")
    start = 0
    with torch.no_grad():
        for weight in weights:
            weight.data = flat[start : start + weight.numel()].view(weight.shape)
            start += weight.numel()


def _patch_programs(patches: Patches, say: Callable[[str], None]) -> None:
    """Disable saving, worker processes of data loaders, and checks of values in distributions."""

    def save(*_args: Any, **_kwargs: Any) -> None:
        say("torch.save: the file was not written, because nothing is computed.")

    from torch.utils.data import DataLoader

    plain_init = DataLoader.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = list(args)
        if len(given) > 5:
            given[5] = 0
        kwargs |= {"num_workers": 0} if len(given) <= 5 else {}
        for name in ("prefetch_factor", "multiprocessing_context", "persistent_workers", "pin_memory", "timeout"):
            kwargs.pop(name, None)
        plain_init(self, *given, **kwargs)

    patches.put(torch, "save", save)
    patches.put(torch.distributions.Distribution, "_validate_args", False)
    patches.put(DataLoader, "__init__", init)
