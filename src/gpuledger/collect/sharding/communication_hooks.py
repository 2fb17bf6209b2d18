"""Communication hooks of DistributedDataParallel: what torch's own hooks allocate to compress a bucket of gradients.

These are smaller copies of the bucket and, for PowerSGD, the factors and the errors that it keeps from step to step.
"""

from __future__ import annotations

import sys
from typing import Any

from gpuledger.collect.attribution.phases import OUTSIDE
from gpuledger.collect.sharding.library_observer import LibraryObserver
from gpuledger.collect.sharding.marked_calls import MarkedCalls, ShardingContext
from gpuledger.model.journal.journal import TagFlag

HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
"""Package of torch with the hooks. Importing one of them imports all."""

UNKNOWN_TORCH = (
    "Buffers of communication hooks are attributed by their lifetime only, because this version of PyTorch is not "
    "supported: {}."
)
_COMPRESSING = (("default_hooks", "_compress_hook", 2), ("powerSGD_hook", "powerSGD_hook", 1))
"""Module, function and the place of the bucket among its arguments. The hooks for two types share the first one."""


class CommunicationHooks(LibraryObserver):
    """Observes the hooks that compress gradients, between :meth:`install` and :meth:`remove`.

    Args:
        context: What it writes to.
    """

    module, unsupported = HOOKS, UNKNOWN_TORCH

    def __init__(self, context: ShardingContext) -> None:
        super().__init__(context, MarkedCalls(context, self._module_of))
        self._owners: dict[int, tuple[int, int]] = {}

    def observe(self) -> None:
        """Flag what the hooks allocate."""
        for module, name, place in _COMPRESSING:
            hook = getattr(sys.modules[f"{HOOKS}.{module}"], name)
            self._calls.mark(hook, int(TagFlag.COMMUNICATION), place=place)

    def _module_of(self, bucket: Any) -> int:
        """Return the id of the module around the parameters of a bucket."""
        if isinstance(bucket, tuple):  # as torch.compile sees it
            return OUTSIDE
        ids = [id(parameter) for parameter in bucket.parameters()]
        if not self._owners.keys() >= set(ids):
            self._owners = self._context.observed.owners()
        return self._context.registry.around({self._owners.get(one, (-1, OUTSIDE))[1] for one in ids})
