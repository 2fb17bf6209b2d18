"""Optimizers of a program that have not taken a step yet, such as that of a GAN's generator: their state is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.program_objects import parameter_groups
from gpuledger.simulate.gpu.device import SimulatedDevice
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.sizes import caller
from gpuledger.units import counted


class WaitingOptimizers:
    """Knows the optimizers that a program makes, and which of them have taken no step."""

    def __init__(self, device: SimulatedDevice) -> None:
        self._device = device
        self._made, self._stepped = WeakIdentitySet(), WeakIdentitySet()
        self.places: list[str] = []
        """Lines of the program that made optimizers, as FILE:LINE."""

    def install(self, patches: Patches) -> None:
        """Notice each new optimizer, and its steps."""
        plain, made, stepped = Optimizer.__init__, self._made, self._stepped

        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            plain(optimizer, *args, **kwargs)
            made.add(optimizer)
            self.places.append(caller())
            optimizer.register_step_post_hook(lambda one, *_: stepped.add(one))

        patches.put(Optimizer, "__init__", init)

    def waiting(self) -> Iterator[Any]:
        """Yield optimizers that have taken no step, although they have parameters on the GPU that no other updates."""
        updated = {id(parameter) for optimizer in self._stepped for parameter in _parameters(optimizer)}
        for optimizer in self._made:
            own = [parameter for parameter in _parameters(optimizer) if id(parameter) not in updated]
            if optimizer not in self._stepped and any(self._device.holds(parameter) for parameter in own):
                yield optimizer

    def describe(self, steps: int) -> list[str]:
        """Return a sentence for each optimizer that has taken no step."""
        return [
            f"{type(optimizer).__name__} with {counted(len([*_parameters(optimizer)]), 'parameter')} took no step "
            f"in the first {steps} steps, so its state is not included. Simulate more steps with --steps N."
            for optimizer in self.waiting()
        ]


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in parameter_groups(optimizer):
        yield from group
