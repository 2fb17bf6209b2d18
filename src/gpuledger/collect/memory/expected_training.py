"""Decide whether a training can follow the calls of a module, which are then not steps of their own."""

from __future__ import annotations

from torch.optim import Optimizer

from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.program_objects import parameter_groups
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.steps.step_counter import StepCounter


class ExpectedTraining:
    """Compares the live optimizers with the modules that are called.

    Args:
        steps: The step counter, which knows the optimizers.
        registry: The modules and their parameters.
    """

    def __init__(self, steps: StepCounter, registry: ModuleRegistry) -> None:
        self.has_trained = WeakIdentitySet()
        """Optimizers that had stepped before the recording began."""
        self._steps = steps
        self._registry = registry
        self._trains: dict[tuple[int, int], bool] = {}

    def of(self, module_id: int) -> bool:
        """Return whether an optimizer exists that can train a module.

        One that has stepped before the recording began counts only if it updates parameters of the module: its training
        may have ended, as in a notebook. Nothing is known of a module that no one called (-1).
        """
        return any(self._can_train(one, module_id) for one in self._steps.optimizers)

    def _can_train(self, optimizer: Optimizer, module_id: int) -> bool:
        if optimizer not in self.has_trained or module_id < 0:
            return optimizer not in self.has_trained
        key = id(optimizer), module_id
        if key not in self._trains:
            updated = {id(one) for group in parameter_groups(optimizer) for one in group}
            self._trains[key] = not updated.isdisjoint(self._registry.parameters_beside(module_id))
        return self._trains[key]
