"""Sample the GPU around the first communication of each process group, when NCCL allocates its buffers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any

from torch import distributed

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.program_objects import attributes_of
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
    "scatter",
    "gather",
    "reduce_scatter",
    "all_to_all",
)
"""Functions of ``torch.distributed`` with a parameter ``group``."""

_BETWEEN_TWO = ("send", "recv", "isend", "irecv")
"""Functions with a parameter ``group`` that connect two of its ranks, also after a collective has connected all."""
_BATCH = "batch_isend_irecv"
"""Takes a list of such calls, each with an attribute ``group``."""

_INIT_BEGINS, _INIT_ENDS = "_check_valid_timeout", "_update_default_pg"
"""Small functions that ``init_process_group`` calls before and after it connects the ranks.

It connects them if it is given a device, otherwise the first collective does.
"""

_OF_DDP = "_verify_param_shape_across_processes"
"""The first collective of DistributedDataParallel, with a parameter ``process_group``. It calls C++."""


class FirstCollectives:
    """Calls ``read`` before and after the first communication of each group, until :meth:`remove`.

    These are its first collective, and its first transfer between two ranks.

    Args:
        read: Takes samples; its argument is the reason.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, read: Callable[[str], None], guard: Guard) -> None:
        self._read = read
        self._absorbs = guard.absorbs
        self._seen: set[tuple[int, bool]] = set()
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
        c10d = distributed.distributed_c10d
        places = [(c10d, name, "group", False) for name in _COLLECTIVES]
        places += [(c10d, name, "group", True) for name in _BETWEEN_TWO]
        for module, name, word, is_between_two in (*places, (distributed.utils, _OF_DDP, "process_group", False)):
            parameters = list(inspect.signature(getattr(module, name, _no_function)).parameters)
            if word in parameters:
                enter = partial(self._enter, is_between_two, itemgetter(parameters.index(word)))
                self._observe(module, name, enter, self._leave)
        self._observe(c10d, _BATCH, partial(self._enter, True, _group_of_batch), self._leave)

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

    def _enter(self, is_between_two: bool, group_of: Callable[[Any], Any], *parameters: Any) -> bool | None:
        """Take samples before the first call of a group that connects ranks; return None before all others."""
        group = group_of(parameters)
        key = 0 if group is None or group is distributed.group.WORLD else id(group), is_between_two
        if self._is_inside or key in self._seen:
            return None
        self._seen.add(key)
        self._is_inside = True
        self._read("collective_start")
        return True

    def _leave(self, _token: bool, _result: Any) -> None:
        self._is_inside = False
        self._read("collective_end")


def _group_of_batch(parameters: Any) -> Any:
    """Return the process group of a list of calls between two ranks; None for the default one."""
    calls = parameters[0]
    return attributes_of(calls[0]).get("group") if type(calls) is list and calls else None


def _no_function() -> None:
    """Stand for a function that this torch does not have."""
