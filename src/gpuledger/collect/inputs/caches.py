"""Tell caches from inputs and outputs, in calls without gradients.

A model that generates keeps keys and values of attention from one call to the next. A call allocates such a cache and
does not return it as a tensor, or a module or the program makes it before and the call writes it.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from gpuledger.collect.adapter.held_tensors import KeyedReference
from gpuledger.collect.adapter.program_objects import (
    bases_of,
    buffers_of,
    innermost_tensor,
    module_of_class,
    tensors_in,
    updates_of,
    without_overrides,
)
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.roster.plain_tensors import plain_tensors
from gpuledger.collect.attribution.tensor_observations import TensorObservations
from gpuledger.model.accounts import Identity

OUTPUT_LEVELS = 2
"""Maximum nesting depth of what a call returns. Deeper, there are caches: a pair of tensors for each layer."""


MOST_SEARCHES = 3
"""Number of calls before which the tensors of all modules are searched, which takes 4 ms for 300 modules."""

_Tensor = tuple[int, int, Any]
"""Ids of name and module, and a tensor."""


class _Call(threading.local):
    """The call of this thread that is in progress.

    Attributes:
        tensors: References to tensors that it can write, with their versions as keys, and ids of name and module.
    """

    def __init__(self) -> None:
        self.tensors: list[tuple[KeyedReference, int, int]] = []


class Caches:
    """Records what calls of outermost modules return, and which tensors from before they write.

    Args:
        observed: Records what tensors are.
    """

    def __init__(self, observed: TensorObservations) -> None:
        self._observed = observed
        self._call = _Call()
        self._searches = 0

    def call_began(self, module_id: int, *arguments: Any) -> None:
        """Record the versions of arguments, and of tensors that modules hold. Keeps none of them alive."""
        call = self._call
        call.tensors = []
        if torch.is_grad_enabled():
            return
        with without_overrides():
            found = [(-1, module_id, tensor) for tensor in tensors_in(arguments)]
            self._searches += 1
            if self._searches <= MOST_SEARCHES:
                found += _held_by_modules(self._observed.registry)
            for name_id, holder_id, tensor in found:
                if not torch.is_inference(tensor):  # the others count no updates
                    reference = KeyedReference(tensor)
                    reference.key = updates_of(tensor)
                    call.tensors.append((reference, name_id, holder_id))

    def call_ended(self, module_id: int, result: Any) -> None:
        """Record the tensors that the call has written, and those that it has returned."""
        call = self._call
        before, call.tensors = call.tensors, []
        if torch.is_grad_enabled():
            return
        with without_overrides():
            written = [
                (Identity.CACHE, name_id, holder_id, tensor)
                for reference, name_id, holder_id in before
                if (tensor := reference()) is not None and updates_of(tensor) != reference.key
            ]
            returned = [innermost_tensor(tensor) for tensor in tensors_in(result, OUTPUT_LEVELS)]
        self._observed.see(written)
        self._observed.see((Identity.OUTPUT, -1, module_id, tensor) for tensor in returned)


def _held_by_modules(registry: ModuleRegistry) -> list[_Tensor]:
    """Return the buffers and the plain tensors that modules hold.

    Buffers of PyTorch's own classes are no caches, but statistics such as those of batch normalization.
    """
    found = list(plain_tensors(registry))
    for module in registry.live_modules():
        buffers = buffers_of(module)
        if buffers and not _is_of_torch(type(module)):
            found += [(*registry.named(module, name), tensor) for name, tensor in buffers]
    return found


def _is_of_torch(kind: type) -> bool:
    """Return whether a class, or one that it extends, is of PyTorch, apart from what every module extends."""
    own = [one for one in bases_of(kind) if one not in (torch.nn.Module, object)]
    return any(module_of_class(one).split(".")[0] == "torch" for one in own)
