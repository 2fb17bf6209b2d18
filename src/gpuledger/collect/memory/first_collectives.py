"""Sample the GPU around the first collective of each process group, when NCCL allocates its buffers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from torch import distributed

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.torch_entrances import torchs_own

_COLLECTIVES = (
    "barrier",
    "broadcast",
    "reduce",
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
)
"""Functions of ``torch.distributed`` with a parameter ``group``."""

_INIT_BEGINS, _INIT_ENDS = "_check_valid_timeout", "_update_default_pg"
"""Small functions that ``init_process_group`` calls before and after it connects the ranks.

It connects them if it is given a device, otherwise the first collective does.
"""

_OF_DDP = "_verify_param_shape_across_processes"
"""The first collective of DistributedDataParallel, with a parameter ``process_group``. It calls C++."""


class FirstCollectives:
    """Calls ``read`` before and after the first collective of each group, between :meth:`install` and :meth:`remove`.

    Args:
        read: Takes samples; its argument is the reason.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, read: Callable[[str], None], guard: Guard) -> None:
        self._read = read
        self._absorbs = guard.absorbs
        self._seen: set[int] = set()
        self._is_inside = False
        self._observations: list[Observation] = []

    def install(self) -> None:
        """Observe collectives if there is a process group, otherwise as soon as one is created."""
        if not distributed.is_available():
            return
        if distributed.is_initialized():
            self._observe_collectives()
            return
        place = distributed.distributed_c10d
        self._observe(place, _INIT_BEGINS, self._enter_init, lambda *_: None)
        self._observe(place, _INIT_ENDS, lambda *_: True, self._leave_init)

    def remove(self) -> None:
        """Stop observing."""
        remove_all(self._observations)

    def _observe_collectives(self) -> None:
        places = [(distributed.distributed_c10d, name, "group") for name in _COLLECTIVES]
        for module, name, word in (*places, (distributed.utils, _OF_DDP, "process_group")):
            parameters = list(inspect.signature(getattr(module, name, _no_function)).parameters)
            if word in parameters:
                self._observe(module, name, partial(self._enter, parameters.index(word)), self._leave)

    def _observe(self, module: Any, name: str, enter: Callable[..., Any], leave: Callable[[Any, Any], None]) -> None:
        """Observe a function, unless this torch does not have it in a form that can be observed."""
        observer = Observer(enter, leave, lambda token: leave(token, None), absorbs=self._absorbs)
        with suppress(CannotInstrumentError):
            self._observations.append(Observation(torchs_own(getattr(module, name, _no_function)), observer))

    def _enter_init(self, *_: Any) -> None:
        if not (self._is_inside or distributed.is_initialized()):
            self._is_inside = True
            self._read("collective_start")

    def _leave_init(self, _token: bool, _result: Any) -> None:
        if self._is_inside and distributed.is_initialized():
            self._is_inside = False
            self._read("collective_end")
            self._observe_collectives()

    def _enter(self, place: int, *parameters: Any) -> bool | None:
        """Take samples before the first collective of a group; return None before all others."""
        group = parameters[place]
        key = 0 if group is None or group is distributed.group.WORLD else id(group)
        if self._is_inside or key in self._seen:
            return None
        self._seen.add(key)
        self._is_inside = True
        self._read("collective_start")
        return True

    def _leave(self, _token: bool, _result: Any) -> None:
        self._is_inside = False
        self._read("collective_end")


def _no_function() -> None:
    """Stand for a function that this torch does not have."""
