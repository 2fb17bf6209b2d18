"""Memory that NCCL would use on one rank, from the communicators that the program uses and how it uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

MIB = 1 << 20
FIRST_BYTES = 352 * MIB
"""What the first communicator of a process adds.

Source of these figures: NCCL 2.28.9 between two H200s of one host, torch 2.11 (bench/memory/nccl_memory.py). With four
H200s, each further rank that is sent to or received from adds the same (bench/memory/results/h200/sharded_4.json).
"""
UNUSED_BYTES, COMMUNICATOR_BYTES = 12 * MIB, 198 * MIB
"""A communicator that was created and not used, and one that was used."""
COLLECTIVE_BYTES, COLLECTIVE_ALONE_BYTES = 288 * MIB, 192 * MIB
"""The first collective of each communicator, of several ranks and of a single one."""
FIRST_TRANSFER_BYTES, SEND_BYTES, RECEIVE_BYTES = 62 * MIB, 64 * MIB, 320 * MIB
"""The first transfer between two ranks of a process, and each rank that a communicator sends to or receives from."""

_LOCAL = ("wait_tensor", "_wrap_tensor_autograd")
_ALL_TO_ALL = ("alltoall_", "alltoall_base_", "all_to_all_single", "shard_dim_alltoall")
WORLD = "default process group"


@dataclass
class Communicator:
    """What one communicator was used for. ``sends_to`` and ``receives_from`` are ranks of its group."""

    size: int
    has_collectives: bool = False
    sends_to: set[int] = field(default_factory=set)
    receives_from: set[int] = field(default_factory=set)

    @property
    def nccl_bytes(self) -> int:
        """Return the bytes of this communicator, beside those of the process's first one."""
        if not (self.has_collectives or self.sends_to or self.receives_from):
            return UNUSED_BYTES
        connected = COLLECTIVE_BYTES if self.size > 1 else COLLECTIVE_ALONE_BYTES
        transfers = SEND_BYTES * len(self.sends_to) + RECEIVE_BYTES * len(self.receives_from)
        return COMMUNICATOR_BYTES + (connected if self.has_collectives else 0) + transfers


@dataclass
class Communicators:
    """The communicators of one rank, by name."""

    by_name: dict[str, Communicator] = field(default_factory=dict)
    is_batch: bool = False
    """Whether transfers belong to a batch, which uses the communicator of the whole group."""

    @property
    def nccl_bytes(self) -> int:
        """Return the bytes of all communicators. Source: the figures above, of one kind of GPU and version of NCCL."""
        every = self.by_name.values()
        total = FIRST_BYTES if every else 0
        total += FIRST_TRANSFER_BYTES if any(one.sends_to or one.receives_from for one in every) else 0
        return total + sum(one.nccl_bytes for one in every)

    def connect(self, group: Any) -> Communicator:
        """Return the communicator of a group, which exists from now on."""
        return self.by_name.setdefault(_name_of(group), Communicator(group.size()))

    def collective(self, group: Any) -> None:
        """Count a collective of all ranks of a group."""
        self.connect(group).has_collectives = True

    def transfer(self, group: Any, sends_to: Sequence[int], receives_from: Sequence[int], *, is_pair: bool) -> None:
        """Count transfers of this rank. A single one between two ranks has a communicator of its own (``is_pair``)."""
        own = group.rank()
        others = [rank for rank in (*sends_to, *receives_from) if rank != own]
        if is_pair and others:
            name = f"{_name_of(group)}, ranks {min(own, others[0])} and {max(own, others[0])}"
            communicator = self.by_name.setdefault(name, Communicator(2))
        else:
            communicator = self.connect(group)
        communicator.sends_to.update(rank for rank in sends_to if rank != own)
        communicator.receives_from.update(rank for rank in receives_from if rank != own)

    def see(self, func: Any, args: Any, kwargs: Any) -> None:
        """Count an operator that communicates tensors on the GPU."""
        name = func.name().partition("::")[2].partition(".")[0]
        if name in _LOCAL or not (name == "barrier" or _is_on_gpu(args)):
            return
        group = _group_of(func, args, kwargs)
        if group is None:
            return
        every = range(group.size())
        if name in _ALL_TO_ALL:
            self.transfer(group, every, every, is_pair=False)
        elif name in ("scatter_", "gather_"):
            root = next(one for one in args if type(one) is int)
            from_root = (root == group.rank()) == (name == "scatter_")
            others = every if root == group.rank() else (root,)
            self.transfer(group, *((others, ()) if from_root else ((), others)), is_pair=False)
        elif name in ("send", "recv_"):
            other = (next(one for one in args if type(one) is int),)
            self.transfer(group, *((other, ()) if name == "send" else ((), other)), is_pair=not self.is_batch)
        else:
            self.collective(group)


def _is_on_gpu(args: Any) -> bool:
    return any(isinstance(one, torch.Tensor) and one.device.type == "cuda" for one in tree_leaves(args))


def _group_of(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the process group of an operator; None if it has none."""
    if func.namespace == "c10d":
        scripted = next((one for one in args if isinstance(one, torch.ScriptObject)), None)
        return None if scripted is None else dist.ProcessGroup.unbox(scripted)
    names = [one for one in (*args, *kwargs.values()) if type(one) is str]
    resolve = dist.distributed_c10d._resolve_process_group  # type: ignore[attr-defined]  # torch does not list it
    return resolve(names[-1]) if names else None  # type: ignore[arg-type]  # its group names are strings


def _name_of(group: Any) -> str:
    """Return the description that the program or torch gave a group, and its name, which no other has."""
    description = group.group_desc
    if group is dist.group.WORLD or description == "default_pg":
        return WORLD
    return f"{description} {group.group_name}" if description and description != "undefined" else group.group_name
