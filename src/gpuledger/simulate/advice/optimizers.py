"""Change optimizers of a program: gradients are accumulated, kernels are fused, or states have 8 bits."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from gpuledger.simulate.advice.combination import EIGHT_BIT, FUSED
from gpuledger.simulate.gpu.patches import Patches

_BLOCK_ELEMENTS = 256
"""Elements of a state of 8 bits that share one scale."""
_LEAST_ELEMENTS = 4096
"""Smaller parameters have states in float32."""
_PARTS_FOLLOWED = 2
"""Parts of a batch that are followed per step. From the second on, all parts need the same memory."""


class ChangedOptimizers:
    """Changes the optimizers that a program makes.

    Args:
        change: ``FUSED``, ``EIGHT_BIT`` or "".
        accumulates: Whether only one of two calls of ``step`` and ``zero_grad`` has an effect.
    """

    def __init__(self, change: str, accumulates: bool) -> None:
        self.changed: dict[str, None] = {}
        """Names of the optimizers that have the change."""
        self._change = change
        self._accumulates = accumulates
        self._tables: dict[str, torch.Tensor] = {}
        self._pending: set[int] = set()
        """Optimizers with gradients of the first parts of a batch."""

    def install(self, patches: Patches) -> None:
        """Change optimizers that the program makes from now on."""
        plain_init, plain_zero = Optimizer.__init__, nn.Module.zero_grad

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            plain_init(optimizer, *args, **kwargs)
            self._apply(optimizer)

        def zero_grad(module: nn.Module, set_to_none: bool = True) -> None:
            if not self._pending:
                plain_zero(module, set_to_none)

        patches.put(Optimizer, "__init__", init)
        patches.put(nn.Module, "zero_grad", zero_grad)

    def _apply(self, optimizer: Any) -> None:
        """Change one optimizer."""
        name, is_adam = type(optimizer).__name__, isinstance(optimizer, Adam)
        if self._change == FUSED and "fused" in optimizer.defaults and not optimizer.defaults["fused"]:
            for group in (optimizer.defaults, *optimizer.param_groups):
                group.update(fused=True, foreach=False)
            optimizer._step_supports_amp_scaling = True  # as the constructor does
            self.changed[name] = None
        elif self._change == EIGHT_BIT and is_adam:
            optimizer.step = MethodType(Optimizer.profile_hook_step(self._step_in_8_bits), optimizer)
            self.changed[name] = None
        if self._accumulates:
            self._accumulate(optimizer)

    def _accumulate(self, optimizer: Any) -> None:
        """Let ``step`` and ``zero_grad`` have an effect at every second call only."""
        plain_step, plain_zero = optimizer.step.__func__, optimizer.zero_grad.__func__
        calls = 0

        def step(one: Any, closure: Any = None) -> Any:
            nonlocal calls
            calls += 1
            if calls % _PARTS_FOLLOWED == 0:
                self._pending.discard(id(one))
                return plain_step(one) if closure is None else plain_step(one, closure)
            self._pending.add(id(one))
            if closure is None:
                return None
            with torch.enable_grad():
                return closure()

        def zero_grad(one: Any, set_to_none: bool = True) -> None:
            if id(one) not in self._pending:
                plain_zero(one, set_to_none)

        optimizer.step = MethodType(step, optimizer)
        optimizer.zero_grad = MethodType(zero_grad, optimizer)

    def _step_in_8_bits(self, optimizer: Any, closure: Any = None) -> Any:
        """Allocate the states of a step, which is computed in place.

        Source: ``Optimizer2State`` of bitsandbytes: two states with a byte per element, two scales per block of 256
        elements, and two tables of 256 values for all parameters.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None and not optimizer.state[parameter]:
                        optimizer.state[parameter].update(self._state_of(parameter))
        return loss

    def _state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        if parameter.numel() < _LEAST_ELEMENTS:
            return {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}
        found: dict[str, Any] = {}
        blocks = -(-parameter.numel() // _BLOCK_ELEMENTS)
        for number in (1, 2):
            table = self._tables.get(f"qmap{number}")
            if table is None:
                table = self._tables[f"qmap{number}"] = torch.zeros(256, device=parameter.device)
            found[f"state{number}"] = torch.zeros_like(parameter, dtype=torch.uint8)
            found[f"absmax{number}"] = torch.zeros(blocks, device=parameter.device)
            found[f"qmap{number}"] = table
        return found
