"""Capture every operator of a step at the dispatcher, below autograd and autocast, on a real or simulated device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.modules import ModuleTracker
from gpuledger.collect.attribution.phases import ModuleContext, Phases
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.model.accounts import Phase
from gpuledger.operator_key import OperatorKey, tensor_bytes
from gpuledger.ops.workloads.describe import IsOnCard, describe_tensor, key_of
from gpuledger.ops.workloads.reuse import ReuseMeter
from gpuledger.ops.workloads.tally import LayerCall, Tally
from gpuledger.simulate.gpu.compiling import run_uncompiled
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.shortcuts import tensors_in

NO_KERNEL = frozenset(
    {
        "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "_unsafe_view",
        "_reshape_alias", "set_", "resize_", "record_stream", "is_same_size", "_local_scalar_dense", "lift",
        "_has_compatible_shallow_copy_type", "_assert_async", "sym_size", "sym_stride", "sym_numel",
    }
)  # fmt: skip
"""Operators that launch nothing, in addition to views."""

_QUESTIONS = frozenset({"prim", "profiler"})
"""Namespaces without work: a tensor's device, the profiler's marks."""

_IMPLICIT, _BACKENDS = "CompositeImplicitAutograd", ("CPU", "CUDA")


class Capture:
    """Captures the operators of the current thread, step by step.

    Args:
        is_on_card: Returns whether a tensor is on the captured device.
        device_type: Device type of autocast.
        on_step: Called at the end of each step with the number of steps so far.
        renamed: Returns the key that a call counts as.
    """

    def __init__(
        self,
        is_on_card: IsOnCard,
        device_type: str,
        on_step: Callable[[int], None] = lambda _steps: None,
        renamed: Callable[[OperatorKey], OperatorKey] = lambda key: key,
    ) -> None:
        self.tally = Tally()
        self.finished: Tally | None = None
        self.trained = False
        self._is_on_card = is_on_card
        self._device_type = device_type
        self._on_step = on_step
        self._renamed = renamed
        self._registry = ModuleRegistry()
        self._context = ModuleContext(self._registry)
        self._phases = Phases(self._context.set_token, TagTable())
        self._reuse = ReuseMeter()
        self._layers: list[list[int]] = []
        self._node: object = None
        self.uncompiled: dict[str, str] = {}
        """Place of a use of ``torch.compile`` -> its mode. Its code is not run."""
        self._patches = Patches()
        self._mode = _Mode(self)
        self._hooks: list[Any] = []
        self._scanned = False
        self._tracker = ModuleTracker(
            self._phases,
            self._registry,
            on_outermost=self._outermost_began,
            on_outermost_end=self._outermost_ended,
            on_backward_end=lambda: None,
            guard=Guard(_raise),
        )

    def __enter__(self) -> Capture:
        self.steps = StepCounter(
            Guard(_raise),
            before_optimizer=lambda _optimizer: self._phases.enter_optimizer(),
            after_optimizer=lambda _optimizer: self._phases.leave_optimizer(Phase.BETWEEN),
            ended=lambda _kind, _start_ns, _end_ns: self.end_step(),
        )
        self.steps.install()
        self._phases.start()
        self._tracker.install()
        run_uncompiled(self._patches, self.uncompiled.setdefault)
        self._hooks = [
            register_module_forward_pre_hook(self._layer_began),
            register_module_forward_hook(self._layer_ended),
        ]
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        return self

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call]  # torch has not annotated it
        for hook in self._hooks:
            hook.remove()
        self._patches.undo()
        self._tracker.remove()
        self.steps.remove()

    def only_operators(self) -> AbstractContextManager[Any]:
        """Return a context that captures operators, without modules, phases and steps."""
        return self._mode

    # -- steps --------------------------------------------------------------------------------------------------------

    def mark_step(self) -> None:
        """Mark the end of a step explicitly."""
        self.steps.mark()

    def end_step(self) -> None:
        """End a step: store its operators, and start a new one."""
        self.finished, self.tally = self.tally, Tally()
        self._layers.clear()
        self._on_step(self.steps.seen)

    def _outermost_began(self, module_id: int, _args: Any, _kwargs: Any) -> None:
        if self._is_outermost(module_id):
            if self.finished is None and not self._scanned:
                self.tally = Tally()  # before the first call, the model was created
            self.steps.call_began(module_id, self._expects_training)

    def _outermost_ended(self, module_id: int, _result: object) -> None:
        if self._is_outermost(module_id):
            self.steps.call_ended(module_id, self._expects_training)

    def _is_outermost(self, module_id: int) -> bool:
        """Return whether a module with weights is in no call of another one, such as one with a training in it."""
        return self._registry.holds_tensors(module_id) and not self._phases.threads.stack

    def _expects_training(self) -> bool:
        """Return whether there is an optimizer. Then calls before its first step are not steps."""
        if not self._scanned:
            self._scanned = True
            self.steps.optimizers.update(self._registry.register_alive(LiveObjects()))
        return bool(self.steps.optimizers)

    # -- operators ----------------------------------------------------------------------------------------------------

    def see(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Count one finished call."""
        if self._phases.phase in (Phase.BACKWARD, Phase.OPTIMIZER):
            self.trained = self.tally.trained = True
        self._meet_node()
        name = func.overloadpacket.__name__
        if func.is_view or name in NO_KERNEL:
            self.tally.no_kernel[str(func)] += 1
            return
        given, made = list(tensors_in((args, kwargs))), list(tensors_in(result))
        if not any(self._is_on_card(tensor) for tensor in (*given, *made)):
            self.tally.host_calls += 1
            return
        key = self._renamed(key_of(func, args, kwargs, result, self._is_on_card, self._device_type))
        distance = self._reuse.meet(self._storages(given), self._storages(made))
        self.tally.add(key, self._context.current_module_path, distance)

    def _meet_node(self) -> None:
        """Count the current autograd node once. Nodes without operators take almost no time."""
        node = torch_private.current_node()
        if node is not self._node:
            self._node = node
            self.tally.autograd_nodes += node is not None

    def _storages(self, tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
        return [
            (tensor.untyped_storage()._cdata, tensor_bytes(describe_tensor(tensor)))
            for tensor in tensors
            if tensor.layout is torch.strided and self._is_on_card(tensor)
        ]

    # -- layers -------------------------------------------------------------------------------------------------------

    def _layer_began(self, _module: nn.Module, _args: Any) -> None:
        self.tally.module_calls += 1
        if self._layers:
            self._layers[-1][1] = True
        self._layers.append([len(self.tally.order), False])

    def _layer_ended(self, module: nn.Module, args: Any, result: Any) -> None:
        """Count a module that called no other module, with its operators."""
        if not self._layers:
            return
        start, called_others = self._layers.pop()
        if called_others or self._phases.phase == Phase.BACKWARD:
            return
        call = LayerCall(
            type(module).__name__,
            module.extra_repr(),
            tuple(describe_tensor(tensor) for tensor in tensors_in(args)),
            tuple(describe_tensor(tensor) for tensor in tensors_in(result)),
            tuple((name, tuple(tensor.shape)) for name, tensor in module.named_parameters()),
        )
        self.tally.add_layer(call, start)


class _Mode(TorchDispatchMode):
    """Gets every operator, after composite operators were decomposed."""

    def __init__(self, capture: Capture) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self._capture = capture
        self._composite: dict[Any, bool] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in _QUESTIONS:
            return func(*args, **kwargs)
        if self._is_composite(func):
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self._capture.see(func, args, kwargs, result)
        return result

    def _is_composite(self, func: Any) -> bool:
        """Return whether an operator is composite. Inference mode does not decompose these."""
        known = self._composite.get(func)
        if known is None:
            has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
            own = any(has_kernel(func.name(), backend) for backend in _BACKENDS)
            known = self._composite[func] = not own and has_kernel(func.name(), _IMPLICIT)
        return known


def why_compiled(uncompiled: Mapping[str, str]) -> dict[str, str]:
    """Return the place, message and hint of an error for a program with these uses of ``torch.compile``."""
    return {
        "place": next(iter(uncompiled)),
        "message": "torch.compile is used here, and the kernels of compiled code cannot be captured as operators",
        "hint": "Capture the uncompiled model, or set TORCHDYNAMO_DISABLE=1",
    }


def operators_of(
    call: Callable[[], Any], is_on_card: IsOnCard, device_type: str, renamed: Callable[[OperatorKey], OperatorKey]
) -> list[OperatorKey]:
    """Return the operators of one call in order, with repetitions, without modules and steps.

    Args:
        call: The function to capture.
        is_on_card: Returns whether a tensor is on the captured device.
        device_type: Device type of autocast.
        renamed: Returns the key that a call counts as.
    """
    capture = Capture(is_on_card, device_type, renamed=renamed)
    with capture.only_operators():
        call()
    keys = {use.key.digest: use.key for use in capture.tally.uses}
    return [keys[digest] for digest in capture.tally.order]


def _raise(error: BaseException) -> None:
    raise error
