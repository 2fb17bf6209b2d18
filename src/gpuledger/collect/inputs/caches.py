"""Tell caches from inputs and outputs, in calls without gradients.

A model that generates keeps keys and values of attention from one call to the next. A call allocates such a cache and
does not return it as a tensor, or the program makes it and the call writes it.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from gpuledger.collect.adapter.held_tensors import KeyedReference
from gpuledger.collect.adapter.program_objects import innermost_tensor, tensors_in, updates_of, without_overrides
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.model.accounts import Identity

OUTPUT_LEVELS = 2
"""Maximum nesting depth of what a call returns. Deeper, there are caches: a pair of tensors for each layer."""


class _Call(threading.local):
    """The call of this thread that is in progress."""

    def __init__(self) -> None:
        self.arguments: list[KeyedReference] = []


class Caches:
    """Records what calls of outermost modules return, and which of their arguments they write.

    Args:
        observed: Records what tensors are.
    """

    def __init__(self, observed: TensorObservations) -> None:
        self._observed = observed
        self._call = _Call()

    def call_began(self, *arguments: Any) -> None:
        """Record the versions of the tensors that a module is called with. Keeps none of them alive."""
        call = self._call
        call.arguments = []
        if torch.is_grad_enabled():
            return
        with without_overrides():
            for tensor in tensors_in(arguments):
                if not torch.is_inference(tensor):  # the others count no updates
                    reference = KeyedReference(tensor)
                    reference.key = updates_of(tensor)
                    call.arguments.append(reference)

    def call_ended(self, module_id: int, result: Any) -> None:
        """Record the arguments that the call has written, and the tensors that it has returned."""
        call = self._call
        arguments, call.arguments = call.arguments, []
        if torch.is_grad_enabled():
            return
        with without_overrides():
            held = ((reference(), reference.key) for reference in arguments)
            written = [tensor for tensor, updates in held if tensor is not None and updates_of(tensor) != updates]
            returned = [innermost_tensor(tensor) for tensor in tensors_in(result, OUTPUT_LEVELS)]
        self._observed.see((Identity.WRITTEN_INPUT, -1, module_id, tensor) for tensor in written)
        self._observed.see((Identity.OUTPUT, -1, module_id, tensor) for tensor in returned)
