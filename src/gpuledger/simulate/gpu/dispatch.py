"""The dispatch mode of a simulated GPU: its tensors are fake, everything else is computed as usual.

A fake tensor has a shape but no data. C++ sees a CPU tensor, because without a GPU there is no device guard, stream or
autograd queue for CUDA. Where C++ would choose differently for a CUDA tensor, :mod:`.functions`, :mod:`.autocast`
and :mod:`.kernels` make CUDA's choice.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch._compile
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.simulate.assumptions import EXPECTED
from gpuledger.simulate.conditions.decisions import Decisions
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.hints import function_for
from gpuledger.simulate.gpu.kernels import KERNELS
from gpuledger.simulate.gpu.shortcuts import Shortcuts, is_made_of_others, is_view, tensors_in
from gpuledger.simulate.gpu.sizes import RESIZED, SIZES, caller, fakes_of, without_own_frames
from gpuledger.simulate.gpu.sparse.parts import parts_of
from gpuledger.simulate.gpu.threads import Where
from gpuledger.simulate.gpu.values import Values, written_tensors
from gpuledger.simulate.host_numbers import HostNumbers, draws
from gpuledger.simulate.temporaries.rules import COPIES_TO_HOST, host_copy_bytes, workspaces_of

LARGE_CPU_BYTES = 256 << 20
"""CPU tensors of at least this size are fake as well, so that building a large model needs no memory."""

PLACEHOLDER, _DECREASE = 0.5, 0.999
"""First result of ``item()`` for tensors that were not computed, and the ratio of each result to the one before.

A loss decreases, and two tensors have different values. For integers it is 1.
"""

_CPU = torch.device("cpu")
_active_mode, _FAKE = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE
_LAST_FIRST = frozenset({torch.ops.aten.native_dropout.default})
"""Operators that allocate their last result first."""

_BETWEEN = (
    str(Path(__file__).parents[1]),
    torch._compile.__file__,
    str(Path(torch.__file__).with_name("_dynamo") / "eval_frame.py"),
)
"""Files with frames between an operator and its caller."""

_DEVICE = torch.ops.prim.device.default
COMMUNICATION = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"))
"""Namespaces of the operators that communicate with other ranks."""

_UNSUPPORTED = (UnsupportedFakeTensorException, UnsupportedOperatorException, NotImplementedError)


class NotModelledError(Exception):
    """An operator cannot be simulated without a GPU."""

    def __init__(self, operator: str, why: str, module: str = "") -> None:
        super().__init__(f"{operator}{f', called by {module},' if module else ':'} {why}")
        self.operator = operator
        self.why = why


@cache
def _wraps_tensors(kind: type) -> bool:
    """Return whether tensors of a class run their operators on tensors inside them, as DTensors do."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


class SimulatedMode(TorchDispatchMode):
    """Runs each operator, without computing it if it is on the GPU, and reports new storages to the device.

    Args:
        device: The GPU.
        where: Set by the function mode, which gets the user's calls first.
        say: Gets a sentence for each value that was guessed.
        assumption: What is assumed of values that are not computed (:data:`.assumptions.ASSUMPTIONS`).
    """

    def __init__(
        self, device: SimulatedDevice, where: Where, say: Callable[[str], None], assumption: str = EXPECTED
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self.device = device
        self.where = where
        self.say = say
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.shortcuts = Shortcuts(self.fake_mode)
        self.values = Values(device, assumption)
        self.host_numbers = HostNumbers()
        self.decisions = Decisions(assumption, device.progress, self._say_decided, self.values.note_assumed)
        self._placeholder = PLACEHOLDER
        self.ran: Callable[[Any, Any, Any, Any], None] | None = None
        """Gets each operator on the GPU, its arguments and its result."""
        self.communicates: Callable[[Any, Any, Any], None] | None = None
        """Gets each operator of :data:`COMMUNICATION`, and its arguments."""
        self._was_on_card = False
        self._sized: tuple[Any, bool] | None = None
        """Values of a result with a size that depends on them, and whether any was assumed."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return True: nothing is compiled on a simulated GPU, and the compiler need not warn at every operator."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.device.is_over:
            raise SystemExit  # ends a thread without a message
        try:
            with self.device.lock:
                return self._dispatched(func, types, args, kwargs)
        except torch.OutOfMemoryError as error:
            del args, kwargs
            raise without_own_frames(error) from None

    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is _DEVICE and not self.fake_mode.in_kernel_invocation:
            return args[0].fake_device  # shortcut: two of three calls ask for a tensor's device
        if any(kind is not FakeTensor and _wraps_tensors(kind) for kind in types):
            return NotImplemented  # a DTensor runs operators on its part, and these come back here
        if _active_mode(_FAKE) is not None:
            return func(*args, **(kwargs or {}))  # torch asks for the shape of a result, and uses no memory
        if self.communicates is not None and func.namespace in COMMUNICATION:
            self.communicates(func, args, kwargs or {})
        if is_made_of_others(func) and function_for(func) is None:
            with torch._C.DisableTorchFunction(), self:
                return func.decompose(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            result = self._run(func, args, kwargs or {})
        if self.ran is not None and self._was_on_card:
            self.ran(func, args, kwargs or {}, result)
        followed = self.device.followed
        if followed is not None and self._was_on_card and followed.is_on:
            followed.see(func, result, args)
        return result

    # -- running ----------------------------------------------------------------------------------------------------

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        any_fake = any_card = any_tensor = False
        holds = self.device.holds
        for tensor in tensors_in((args, kwargs)):
            any_tensor = True
            if isinstance(tensor, FakeTensor):
                any_fake = True
                if holds(tensor):
                    any_card = True
                    break
        asked, kwargs = self._asked_place(kwargs)
        on_card = asked if asked is not None else any_card or (not any_tensor and self.where.around)
        self._was_on_card = on_card
        if not (any_fake or on_card) and (any_tensor or not _is_large(args, kwargs)):
            if draws(func):
                self.host_numbers.catch_up()
            return func(*args, **kwargs)
        targets = written_tensors(func, args, kwargs) if any_fake else []
        if targets and not any(isinstance(tensor, FakeTensor) for tensor in targets):
            return self._written_to_host(func, args, kwargs, targets)
        if any_card and targets and not any(map(holds, targets)):
            self._was_on_card = on_card = False  # it writes tensors of the CPU, which stay there
        if not on_card:
            if draws(func):
                self.host_numbers.defer(func, args, kwargs)
            with self.device.borrow(self._host_copy(func, args, targets or None) if any_card else (), func):
                result, self._sized = self.fake(func, args, kwargs), None
            return result
        return self._run_there(func, args, kwargs)

    def _run_there(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the fake result of an operator on the GPU: in compiled code, by our fake kernel, or by torch's."""
        if self.device.fusion.takes(func):
            return self._fused(func, args, kwargs)
        if not is_view(func):
            self.device.fusion.write_arguments(args, kwargs)
        kernel = KERNELS.get(func)
        if kernel is not None:
            result = kernel(self, func, args, kwargs)
            if result is not NotImplemented:
                self.values.forget_written(func, args, kwargs)
                return result
        return self.run_on_card(func, args, kwargs)

    def _asked_place(self, kwargs: dict[str, Any]) -> tuple[bool | None, dict[str, Any]]:
        """Return whether an operator's arguments ask for the GPU, and the arguments with which it runs."""
        device = kwargs.get("device")
        if device is not None and device.type == "cuda":
            return True, {**kwargs, "device": _CPU}
        if kwargs.get("pin_memory"):  # memory of the host, which cannot be pinned without a GPU
            return False, {**kwargs, "pin_memory": False}
        is_meta = device is not None and device.type == "meta"
        return (False if is_meta else self.where.asked), kwargs

    def run_on_card(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the fake result of an operator on the GPU, after allocating its storages and workspaces."""
        device = self.device
        function = function_for(func)
        if function is not None:
            return self.run_instead(function, func, args, kwargs)
        spaces = workspaces_of(func, args, kwargs, device)
        if spaces is None:
            return self._followed(func, args, kwargs)
        with device.borrow(spaces.before, spaces.label):
            with device.borrow(spaces.first, spaces.label):
                pass
            result = self._followed(func, args, kwargs)
            for key, size_bytes in spaces.kept:
                device.keep(key, size_bytes, spaces.label)
            for sizes in (spaces.after, spaces.later):
                with device.borrow(sizes, spaces.label):
                    pass
        return result

    def _written_to_host(self, func: Any, args: Any, kwargs: dict[str, Any], targets: list[torch.Tensor]) -> Any:
        """Return the CPU tensors with data that an operator writes. From now on, their values may be unknown."""
        with self.device.borrow(self._host_copy(func, args, targets), func):
            if self.values.compute(func, args, kwargs) is None:
                self.values.lose(func, targets)
        if not func._schema.returns:
            return None
        return targets[0] if len(func._schema.returns) == 1 else tuple(targets)

    def _host_copy(self, func: Any, args: Any, targets: list[torch.Tensor] | None = None) -> tuple[int, ...]:
        """Return the bytes of a contiguous copy on the GPU, from which a copy to the CPU is made."""
        if func not in COPIES_TO_HOST or not self.device.holds(args[0] if targets is None else args[1]):
            return ()
        return host_copy_bytes(args[0]) if targets is None else host_copy_bytes(args[1], targets[0])

    def _followed(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the fake result of an operator, allocated, with its values where they are known."""
        result = self.fake(func, args, kwargs)
        sized, self._sized = self._sized, None
        self.account(func, result)
        if sized is None:
            self.values.follow(func, args, kwargs, result)
        else:
            self.values.keep(result, *sized)
        return result

    def _fused(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the fake result of an operator in compiled code, which may have no memory."""
        result, self._sized = self.fake(func, args, kwargs), None
        self.device.fusion.made(func, args, kwargs, result)
        self.values.follow(func, args, kwargs, result)
        return result

    def run_instead(self, function: Callable[..., Any], func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the fake result of a user's function that replaces an operator or function."""
        with torch._C.DisableTorchFunction(), self.fake_mode:
            result = function(*args, **kwargs)
        self.account(func, result)
        return result

    def account(self, func: Any, result: Any) -> None:
        """Allocate every new storage of a result on the GPU."""
        if isinstance(result, torch.Tensor):
            if result.layout is not torch.strided and parts_of(result) is None:
                self.say(f"{caller()}: the memory of the sparse result of {func} is not included.")
            self.device.adopt(result, func)
            return
        made = list(tensors_in(result))
        for tensor in reversed(made) if func in _LAST_FIRST else made:
            self.device.adopt(tensor, func)

    def fake(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return an operator's result without computing it.

        Raises:
            NotModelledError: it is not known without a GPU.
        """
        try:
            return self.shortcuts.result(func, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return self._guess(func, args, kwargs)
        except _UNSUPPORTED as error:
            why = f"has no fake (meta) kernel, so the size of its result is unknown ({type(error).__name__})"
            raise NotModelledError(str(func), why, self.device.module_now()) from error

    def make(self, size: Any, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a new fake tensor with the given size."""
        with self.fake_mode:
            return torch.empty(size, dtype=dtype or like.dtype, device="cpu")

    # -- unknown values --------------------------------------------------------------------------------------------

    def _guess(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a value, or a result with a size, that is known only after computing."""
        name = func.overloadpacket._qualified_op_name.partition("::")[2]
        if name in ("_local_scalar_dense", "item", "is_nonzero"):
            return self.placeholder(args[0], as_condition=name == "is_nonzero")
        real = self.values.compute(func, args, kwargs)
        if real is not None:
            return self._computed(name, args, kwargs, real)
        if name == "equal":
            if args[0].shape != args[1].shape:
                return False
            self.say(f"{caller()}: two tensors were compared and treated as equal, because nothing is computed.")
            return True
        if name == "allclose":
            return self._truth()
        made = SIZES[name](self, args, kwargs) if name in SIZES else NotImplemented
        if made is NotImplemented:
            why = "the size of its result depends on values, and an estimate computes none"
            raise NotModelledError(str(func), why, self.device.module_now())
        again = self.values.compute(func, args, kwargs)  # a mask has values now, if they were assumed
        if isinstance(again, torch.Tensor) and isinstance(made, torch.Tensor) and again.shape == made.shape:
            self._sized = again, True
        return made

    def _computed(self, name: str, args: Any, kwargs: dict[str, Any], real: Any) -> Any:
        """Return fake results with the sizes of real ones."""
        assumed = any(self.values.is_assumed(tensor) for tensor in tensors_in((args, kwargs)))
        if assumed:
            self.values.was_assumed = True
            self.say(f"{caller()}: the size of {name}'s result follows from values that were assumed.")
        if isinstance(real, bool):
            return real
        self._sized = real, assumed
        return fakes_of(self, real, args[0].numel() if name in RESIZED else 0)

    def called_from_python(self) -> bool:
        """Return whether the current operator was called by Python code, not by the autograd engine."""
        frame = _calling_frame()
        return frame is None or frame.f_code.co_name != "_engine_run_backward"

    def placeholder(self, tensor: torch.Tensor, *, as_condition: bool = False) -> Any:
        """Return what ``item()`` returns: the value if it is known, or else a placeholder.

        Args:
            tensor: It has one element.
            as_condition: Whether only the truth of the value is needed.
        """
        real = self.values.of(tensor, reads=True)
        is_condition = as_condition or tensor.dtype == torch.bool
        if real is not None and real.numel() == 1:
            is_assumed = self.values.is_assumed(tensor)
            if is_assumed and is_condition and self.decisions.is_check(_calling_frame()):
                return self._truth()  # values that were assumed would fail most checks
            if is_assumed:
                self.say(f"{caller()}: .item() returned a value that was assumed.")
            return bool(real) if as_condition else real.item()
        if is_condition:
            return self._truth()
        self.say(f"{caller()}: .item() returned a placeholder value, because nothing is computed.")
        return self._next_number(tensor) if tensor.is_floating_point() else 1

    def _truth(self) -> bool:
        """Return the truth of a value that was not computed: what it decides is decided by the program's source."""
        decided = self.decisions.decide(_calling_frame())
        if decided is None:
            self.say(f"{caller()}: a condition on a tensor was taken as False, because nothing is computed.")
        return bool(decided)

    def _say_decided(self, decision: str) -> None:
        self.say(f"{caller()}: a condition depends on values that are not computed: {decision}.")

    def _next_number(self, tensor: torch.Tensor) -> float:
        """Return a placeholder value; the same one if a tensor is read again without a change."""
        version = None if tensor.is_inference() else tensor._version
        known: tuple[int | None, float] | None = getattr(tensor, "_gpuledger_value", None)
        if known is None or known[0] != version:
            known = version, self._placeholder
            self._placeholder *= _DECREASE
            tensor._gpuledger_value = known  # type: ignore[attr-defined]
        return known[1]


def _calling_frame() -> FrameType | None:
    """Return the innermost frame outside the simulation and torch's dispatching."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame


def _is_large(args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a factory's result is so large that it should be fake on the CPU too."""
    size = args[0] if args else kwargs.get("size")
    if not isinstance(size, (list, tuple)) or not all(isinstance(n, int) for n in size):
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return math.prod(size) * dtype.itemsize >= LARGE_CPU_BYTES
