"""Handle calls of torch functions for tensors on the simulated GPU: devices, and CUDA's choices of operators."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal.nested_tensor import NestedTensor, nested_view_from_values_offsets_lengths
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from gpuledger.collect.adapter.dispatch_modes import run_outside_modes
from gpuledger.simulate.conditions.numbers import UnknownNumber
from gpuledger.simulate.gpu.dispatch import PLACEHOLDER, SimulatedMode
from gpuledger.simulate.gpu.lazy import marked
from gpuledger.simulate.gpu.sizes import caller, without_own_frames

CPU = torch.device("cpu")
Handler = Callable[["SimulatedFunctions", Any, Any, dict[str, Any]], Any]


class SimulatedFunctions(TorchFunctionMode):
    """Intercepts calls of torch functions from Python, before they reach C++."""

    def __init__(self, mode: SimulatedMode) -> None:
        super().__init__()
        self.mode = mode
        self.device = mode.device
        self.where = mode.where
        self.default_device: torch.device | None = None
        """Device set by ``torch.set_default_device``, if it is the GPU."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._called(func, args, kwargs or {})
        except torch.OutOfMemoryError as error:
            del args, kwargs
            raise without_own_frames(error) from None

    def _called(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.default_device is not None and kwargs.get("device") is None and func in _device_constructors():
            kwargs = {**kwargs, "device": self.default_device}
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, args, kwargs)
        if kwargs and kwargs.get("device") is not None:
            return self.with_device(func, args, kwargs)
        if isinstance(func, (types.FunctionType, types.BuiltinFunctionType)):
            before = self.where.around
            self.where.around = before or self.any_on_card(args)
            try:
                return func(*args, **kwargs)
            finally:
                self.where.around = before
        return func(*args, **kwargs)

    def on_card(self, value: Any) -> bool:
        """Return whether a value is a tensor on the GPU."""
        return isinstance(value, FakeTensor) and self.device.holds(value)

    def is_placed(self, value: Any) -> bool:
        """Return whether a value is a tensor on the GPU, or a DTensor or nested tensor with its values there."""
        return self.on_card(_inner(value))

    def any_on_card(self, args: Any) -> bool:
        """Return whether any argument is on the GPU."""
        return any(self.on_card(value) for value in args)

    def note_index(self, device: torch.device) -> None:
        """Say that a program uses several GPUs, which are one here."""
        if device.type == "cuda" and device.index not in (None, self.device.place.index):
            self.mode.say(f"{caller()}: the memory of {device} is counted on {self.device.place}, the simulated GPU.")

    def with_device(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the result of a function on the device in its arguments."""
        device = as_device(kwargs["device"])
        if device.type == "meta":
            return func(*args, **kwargs)
        self.note_index(device)
        with self.where.asking(device.type == "cuda"):
            return func(*args, **{**kwargs, "device": CPU})

    def move(self, tensor: torch.Tensor, to_card: bool, **how: Any) -> torch.Tensor:
        """Return a differentiable copy of a tensor on the GPU or on the CPU."""
        with self.where.asking(to_card):
            moved: torch.Tensor = torch.ops.aten._to_copy.default(tensor, **how)
        return moved


def _inner(value: Any) -> Any:
    """Return the part of a DTensor on this GPU, the values of a nested tensor, or any other value itself."""
    if isinstance(value, NestedTensor):
        return value._values
    return getattr(value, "_local_tensor", value)


def as_device(value: Any) -> torch.device:
    """Return the device for ``"cuda:0"``, ``0`` or a device."""
    if isinstance(value, int):
        return torch.device("cuda", value)
    return value if isinstance(value, torch.device) else torch.device(value)


def _device_of(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.device.place if mode.is_placed(args[0]) else func(*args, **kwargs)


def _is_cuda(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> bool:
    return mode.is_placed(args[0])


def _is_cpu(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    return not mode.is_placed(args[0]) and func(*args, **kwargs)


def _get_device(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> int:
    return mode.device.place.index if mode.is_placed(args[0]) else -1


def _to(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle ``Tensor.to`` in all its forms: a device, a dtype, another tensor."""
    tensor, rest, how = args[0], list(args[1:]), dict(kwargs)
    device, dtype = how.pop("device", None), how.pop("dtype", None)
    other = how.pop("other", None)
    if rest and isinstance(rest[0], torch.Tensor):
        other = rest.pop(0)
    if other is not None:
        device, dtype = (mode.device.place if mode.is_placed(other) else CPU), other.dtype
    for value in rest[:2]:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, torch.device)) or (isinstance(value, int) and not isinstance(value, bool)):
            device = value
    here = mode.is_placed(tensor)
    device = as_device(device) if device is not None else mode.device.place if here else CPU
    if device.type == "meta":
        return func(*args, **kwargs)
    mode.note_index(device)
    there = device.type == "cuda"
    if is_lazy(tensor):
        return marked(tensor, there)
    dtype = dtype or tensor.dtype
    layout = how.get("memory_format")
    copy = how.get("copy") or any(value is True for value in rest[3:4])
    same_layout = layout in (None, torch.preserve_format) or tensor.is_contiguous(memory_format=layout)
    if here == there and dtype == tensor.dtype and same_layout and not copy:
        return tensor
    if isinstance(tensor, NestedTensor) and here != there:
        return _moved_nested(mode, tensor, there, dtype)
    if not there and not isinstance(tensor, FakeTensor):
        return func(tensor, dtype=dtype, copy=copy, memory_format=layout or torch.preserve_format)
    known = mode.mode.values.of(tensor, reads=True) if here and not there and not tensor.requires_grad else None
    if known is not None:
        return known.to(dtype, copy=True)
    extra = {} if layout is None else {"memory_format": layout}
    return mode.move(tensor, there, dtype=dtype, **extra)


def _moved_nested(mode: SimulatedFunctions, nested: NestedTensor, there: bool, dtype: torch.dtype) -> Any:
    """Return a nested tensor with copies of its values, offsets and lengths on the GPU or on the CPU."""
    parts = [nested.offsets(), nested.lengths()]
    offsets, lengths = (None if part is None else mode.move(part, there) for part in parts)
    return nested_view_from_values_offsets_lengths(
        mode.move(nested.values(), there, dtype=dtype),
        offsets,
        lengths,
        ragged_idx=nested._ragged_idx,
        min_seqlen=nested._maybe_min_seqlen,
        max_seqlen=nested._maybe_max_seqlen,
    )


def _cuda(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    layout = kwargs.get("memory_format")
    return _to(mode, torch.Tensor.to, (args[0], mode.device.place), {} if layout is None else {"memory_format": layout})


def _cpu(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    return _to(mode, torch.Tensor.to, (args[0], CPU), {}) if mode.is_placed(args[0]) else func(*args, **kwargs)


def _same(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _unchanged(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle the function that reads the arguments of ``Module.to``: it creates no tensor on its ``device``."""
    return func(*args, **kwargs)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Return a real tensor of zeros with the shape of one that was not computed."""
    return run_outside_modes(lambda: torch.zeros(tensor.shape, dtype=tensor.dtype))


def _values(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle ``numpy()`` and similar calls: zeros for values that were not computed."""
    tensor = args[0]
    if not isinstance(tensor, FakeTensor):
        return func(*args, **kwargs)
    known = mode.mode.values.of(tensor, reads=True)
    if known is None:
        mode.mode.placeholder(tensor)
    return run_outside_modes(
        lambda: func(_zeros(tensor.detach()) if known is None else known.clone(), *args[1:], **kwargs)
    )


def _item(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle ``item()``: a number that is not known decides nothing."""
    found = func(*args, **kwargs)
    tensor = args[0]
    if type(found) is not float or not isinstance(tensor, FakeTensor) or mode.mode.values.of(tensor) is not None:
        return found
    return UnknownNumber(found, mode.mode.decisions.decide)


def float_of(mode: SimulatedMode) -> Callable[[Any], float]:
    """Return what stands for ``float()`` in a program: the number of a tensor that is not computed decides nothing.

    Python makes a plain number of any result of ``__float__``.
    """

    def number(value: Any = 0.0) -> float:
        if isinstance(value, UnknownNumber):
            return value
        made = float(value)
        is_unknown = isinstance(value, FakeTensor) and mode.values.of(value) is None
        return UnknownNumber(made, mode.decisions.decide) if is_unknown else made

    return number


def _format(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> str:
    tensor = args[0]
    if not isinstance(tensor, FakeTensor):
        return func(*args, **kwargs)  # type: ignore[no-any-return]
    if tensor.dim() == 0 and len(args) > 1:
        return format(PLACEHOLDER if tensor.is_floating_point() else 1, args[1])
    where = f", device='{mode.device.place}'" if mode.on_card(tensor) else ""
    return f"tensor(..., size={tuple(tensor.shape)}, dtype={tensor.dtype}{where})"


def _address(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.device.address(args[0]) if isinstance(args[0], FakeTensor) else func(*args, **kwargs)


def _tensor(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle ``torch.tensor`` and ``as_tensor``: create the tensor on the CPU, then move it."""
    device = kwargs.get("device")
    data = args[0] if args else kwargs.get("data")
    if device is None:
        return data if func is torch.as_tensor and mode.on_card(data) else func(*args, **kwargs)
    made = func(
        *args,
        **{**kwargs, "device": CPU, "requires_grad": False} if func is torch.tensor else {**kwargs, "device": CPU},
    )
    if as_device(device).type == "cuda" and not mode.on_card(made):
        made = mode.move(made, True)
    return made.requires_grad_() if kwargs.get("requires_grad") else made


def _new(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    """Handle ``new_zeros`` and similar calls without a device: use the tensor's device."""
    if kwargs.get("device") is not None:
        return mode.with_device(func, args, kwargs)
    with mode.where.asking(mode.on_card(args[0])):
        return func(*args, **kwargs)


def _linear(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    """Add the bias in place to the product, as for plain tensors; for a subclass, torch adds it separately."""
    data, bias = args[0], args[2] if len(args) > 2 else kwargs.get("bias")
    if bias is None or not mode.on_card(data) or data.dim() <= 2 or data.is_contiguous():
        return func(*args, **kwargs)
    data, weight, bias = cast_for_autocast(data, args[1], bias)
    return torch.matmul(data, weight.t()).add_(bias)


def cast_for_autocast(*tensors: Any, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    """Return tensors as autocast passes them to a matrix product, or to an operator that it runs in ``dtype``."""
    if not torch.is_autocast_enabled("cuda"):
        return tensors
    dtype = dtype or torch.get_autocast_dtype("cuda")
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def _deepcopy(mode: SimulatedFunctions, func: Any, args: Any, kwargs: Any) -> Any:
    tensor, memo = args
    if not isinstance(tensor, FakeTensor):
        return func(*args, **kwargs)
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        copied = tensor.detach().clone()
    made = torch.nn.Parameter(copied) if isinstance(tensor, torch.nn.Parameter) else copied
    memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


_T = torch.Tensor
_HANDLERS: dict[Any, Handler] = {
    _T.device.__get__: _device_of,
    _T.is_cuda.__get__: _is_cuda,  # type: ignore[attr-defined]
    _T.is_cpu.__get__: _is_cpu,  # type: ignore[attr-defined]
    _T.get_device: _get_device,
    _T.to: _to,
    _T.cuda: _cuda,
    _T.cpu: _cpu,
    _T.pin_memory: _same,
    _T.share_memory_: _same,
    _T.numpy: _values,
    _T.__array__: _values,
    _T.item: _item,
    _T.__format__: _format,
    _T.__repr__: _format,
    _T.data_ptr: _address,
    _T.new_tensor: _new,
    _T.__deepcopy__: _deepcopy,
    torch._C._nn.linear: _linear,
    torch._C._nn._parse_to: _unchanged,
    torch.tensor: _tensor,
    torch.as_tensor: _tensor,
}
