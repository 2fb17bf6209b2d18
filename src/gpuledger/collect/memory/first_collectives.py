"""Sample the GPU around the first communication of each process group, when NCCL allocates its buffers.

NCCL connects the ranks of a group when they first communicate. A collective connects them in another way than a
transfer between two ranks, so each kind has a first communication of its own. DTensor communicates in operators written
in C++; what changes its placements is observed instead.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any

from torch import distributed

from gpuledger.collect.adapter.dispatch_modes import traces_shapes
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
    "all_gather_single",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
)
"""Functions of ``torch.distributed`` with a parameter ``group``. Not every version of torch has all of them."""

_TO_EACH = ("scatter", "gather", "all_to_all", "all_to_all_single")
"""The same for collectives that NCCL makes of transfers between two ranks."""

_BETWEEN_TWO = ("send", "recv", "isend", "irecv")
"""Functions with a parameter ``group`` that connect two of its ranks, also after a collective has connected all."""
_BATCH = "batch_isend_irecv"
"""Takes a list of such calls, each with an attribute ``group``."""

_DTENSORS = "torch.distributed.tensor._redistribute"
_REDISTRIBUTE = "redistribute_local_tensor"
"""Changes the placements of a DTensor. Its first parameters are the local tensor, its layout, and the one it gets."""

_INIT_BEGINS, _INIT_ENDS = "_check_valid_timeout", "_update_default_pg"
"""Small functions that ``init_process_group`` calls before and after it connects the ranks.

It connects them if it is given a device, otherwise the first collective does.
"""

_OF_DDP = "_verify_param_shape_across_processes"
"""The first collective of DistributedDataParallel, with a parameter ``process_group``. It calls C++."""


Entry = dict[str, Any]
"""One first communication, with the fields of :class:`gpuledger.model.manifest.FirstCommunication`."""


class FirstCollectives:
    """Calls ``read`` before and after the first communication of each group, until :meth:`remove`.

    These are its first collective, its first one that NCCL makes of transfers, and its first transfer of two ranks.

    Args:
        read: Takes samples; its argument is the reason.
        guard: Handles exceptions raised in gpuledger's code.
        note: Gets all first communications so far as ``communications``, after each one.
    """

    def __init__(self, read: Callable[[str], None], guard: Guard, note: Callable[..., None]) -> None:
        self._read = read
        self._note = note
        self._absorbs = guard.absorbs
        self._seen: set[tuple[str, str]] = set()
        self._found: list[Entry] = []
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
        places = [(c10d, name, "group", "collective") for name in _COLLECTIVES]
        places += [(c10d, name, "group", "to each") for name in _TO_EACH]
        places += [(c10d, name, "group", "two ranks") for name in _BETWEEN_TWO]
        for module, name, word, kind in (*places, (distributed.utils, _OF_DDP, "process_group", "collective")):
            parameters = list(inspect.signature(getattr(module, name, _no_function)).parameters)
            if word in parameters:
                enter = partial(self._enter, kind, name, itemgetter(parameters.index(word)))
                self._observe(module, name, enter, self._leave)
        self._observe(c10d, _BATCH, partial(self._enter, "two ranks", _BATCH, _group_of_batch), self._leave)
        dtensors = sys.modules.get(_DTENSORS)
        if dtensors is not None:
            self._observe(dtensors, _REDISTRIBUTE, self._enter_redistribute, self._leave)

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
            self._leave((distributed.group.WORLD, "init_process_group"), None)
            self._observe_collectives()

    def _enter(self, kind: str, call: str, group_of: Callable[[Any], Any], *parameters: Any) -> tuple[Any, str] | None:
        """Take samples before the first call of its kind in a group; return None before all others."""
        group = group_of(parameters)
        if group is None:
            group = distributed.group.WORLD
        if self._is_inside or not isinstance(group, distributed.ProcessGroup):
            return None  # what a rank has in place of a group that it is not in communicates nothing
        key = group.group_name, kind
        if key in self._seen:
            return None
        self._seen.add(key)
        self._is_inside = True
        self._read("collective_start")
        return group, call

    def _enter_redistribute(self, *parameters: Any) -> tuple[Any, str] | None:
        """Take samples before DTensor communicates in a group for the first time, unless shapes alone are traced."""
        if traces_shapes():
            return None
        entered = (
            self._enter("collective", _REDISTRIBUTE, itemgetter(0), group)
            for group in _groups_of_redistribute(*parameters[1:3])
        )
        return next(filter(None, entered), None)

    def _leave(self, token: tuple[Any, str], _result: Any) -> None:
        group, call = token
        self._is_inside = False
        self._found.append({"group": name_of(group), "size": group.size(), "call": call, "t_ns": time.time_ns()})
        self._read("collective_end")
        self._note(communications=self._found)


def _group_of_batch(parameters: Any) -> Any:
    """Return the process group of a list of calls between two ranks; None for the default one."""
    calls = parameters[0]
    return attributes_of(calls[0]).get("group") if type(calls) is list and calls else None


def _groups_of_redistribute(layout: Any, asked: Any) -> Iterator[Any]:
    """Yield the groups that communicate while a DTensor with one layout gets another one."""
    mesh = layout.mesh
    for dimension, (before, after) in enumerate(zip(layout.placements, asked.placements, strict=True)):
        if before != after and not before.is_replicate():
            yield mesh.get_group(dimension)


def name_of(group: Any) -> str:
    """Return a process group's description, such as ``mesh_tp``; its name if it has none."""
    if group is distributed.group.WORLD:
        return "the default process group"
    description = group.group_desc
    return description if description and description != "undefined" else f"process group {group.group_name}"


def _no_function() -> None:
    """Stand for a function that this torch does not have."""
