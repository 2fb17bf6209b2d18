"""Decide which outermost modules can have calls that are steps."""

from __future__ import annotations

from torch import nn

from gpuledger.collect.adapter.program_objects import holds_tensors, is_single_layer, module_of_class

_OBSERVERS = ("torch.ao.quantization.", "torchao.quantization.")
"""Modules of torch whose classes are called while a model is quantized."""


class OutermostModules:
    """The outermost modules that have weights or buffers, those that compute without any, and those that were freed.

    An observer of quantization is neither: it keeps statistics of the weights of a model.
    """

    def __init__(self) -> None:
        self.freed: set[int] = set()
        """Ids of the outermost modules that were freed."""
        self._with_tensors: set[int] = set()
        self._without: set[int] = set()

    def add(self, top: nn.Module, root_id: int, *, is_outermost: bool) -> None:
        """Add a module. One that is not outermost gives its weights to the outermost module that calls it."""
        if module_of_class(type(top)).startswith(_OBSERVERS):
            return
        if holds_tensors(top):
            self._with_tensors.add(root_id)
        elif is_outermost and not is_single_layer(top):
            self._without.add(root_id)

    def hold_tensors(self, root_id: int) -> bool:
        """Return whether an outermost module had weights or buffers when it was registered."""
        return root_id in self._with_tensors

    def can_take_steps(self, root_id: int) -> bool:
        """Return whether calls of an outermost module can be steps.

        Those of one without weights can if no module with weights exists, as with a loss in a program that has its
        weights in plain tensors. Beside a model, such a module prepares data or measures something.
        """
        return root_id in self._with_tensors or (root_id in self._without and self._with_tensors <= self.freed)
