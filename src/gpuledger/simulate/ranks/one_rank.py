"""Run a program as one rank of a job, in one process and without communication.

Every process group is torch's fake one: collectives return at once and copy nothing. torch allocates the buffers of
collectives itself, so they are simulated like any other tensor. NCCL's own memory follows from the communicators.
"""

from __future__ import annotations

import inspect
import multiprocessing.process
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gpuledger.collect.adapter.program_objects import items_of
from gpuledger.errors import InputError
from gpuledger.simulate.gpu.dispatch import SimulatedMode
from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.gpu.sizes import caller
from gpuledger.simulate.ranks.messages import Messages, NoMessages
from gpuledger.simulate.ranks.nccl import Communicators
from gpuledger.simulate.ranks.objects import ObjectCollectives
from gpuledger.simulate.ranks.place import RankError, RankPlace
from gpuledger.simulate.ranks.reducer import install_reducer
from gpuledger.simulate.ranks.waits import EndedProcesses, end_waits

_FAKE = "fake"
_WORLD_SIZE = 3
"""Position of that argument of ``init_process_group``."""
_LAUNCH = "Estimate the program that torchrun starts, not its launcher"


def fake_store() -> Any:
    """Return a store for torch's fake process group.

    Raises:
        InputError: this version of torch has none.
    """
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError as error:
        raise InputError(
            f"torch {torch.__version__} has no fake process group, so its ranks cannot be simulated",
            hint="Install torch 2.3 or later, or estimate without --world-size",
        ) from error
    return FakeStore()


class OneRank:
    """Replaces functions of ``torch.distributed`` for a program that runs as one rank.

    Args:
        place: The rank.
        messages: Exchanges objects with other ranks.
        say: Gets a sentence for each assumption.
    """

    def __init__(self, place: RankPlace, messages: Messages, say: Callable[[str], None]) -> None:
        self.place = place
        self.initialized = self.is_spawned = False
        """Whether the program initialized a process group, and whether it spawned a process for each rank."""
        self.communicators = Communicators()
        self._say = say
        self._is_eager = False
        self._backend = "nccl"
        self._store = fake_store()
        self._objects = ObjectCollectives(place.rank, messages, say)
        self._init, self._new_group, self._get_backend = dist.init_process_group, dist.new_group, dist.get_backend

    def install(self, patches: Patches, mode: SimulatedMode) -> None:
        """Install everything, and set the environment variables of torchrun."""
        os.environ.update(self.place.environment())
        device = mode.device
        device.count = self.place.local_world_size
        device.set_place(self.place.local_rank)
        self.install_groups(patches, mode)
        for name in ("TCPStore", "FileStore"):
            put_everywhere(patches, name, _refuse_store(name))
        patches.put(torch.multiprocessing, "spawn", self.spawn)
        patches.put(sys.modules["torch.multiprocessing.spawn"], "spawn", self.spawn)
        patches.put(multiprocessing.process.BaseProcess, "start", _refuse_process)
        end_waits(patches, self._say)

    def install_groups(self, patches: Patches, mode: SimulatedMode) -> None:
        """Replace process groups, and what communicates in them."""

        def put(name: str, function: Callable[..., Any]) -> None:
            put_everywhere(patches, name, function)

        put("init_process_group", self.init_process_group)
        put("new_group", self.new_group)
        put("get_backend", self.get_backend)
        put("is_nccl_available", lambda: True)
        for name, function in self._objects.functions().items():
            put(name, self._counted(name, function))
        put("batch_isend_irecv", self._batch(dist.batch_isend_irecv))
        mode.communicates = self._see
        install_reducer(patches, put, mode)
        patches.put(torch.cuda.nccl, "version", lambda: (2, 28, 9))
        patches.put(torch.cuda.nccl, "is_available", lambda tensors=None: True)

    # -- process groups ---------------------------------------------------------------------------------------------

    def init_process_group(self, backend: Any = None, *_args: Any, **given: Any) -> None:
        """Initialize a process group without communication.

        Raises:
            RankError: the program asks for another rank or number of ranks.
        """
        for name, own in (("world_size", self.place.world_size), ("rank", self.place.rank)):
            asked = int(given.get(name, -1))
            if asked not in (-1, own):
                here = f"--world-size is {own}" if name == "world_size" else f"it runs as rank {own}"
                raise RankError(
                    f"{caller()}: init_process_group({name}={asked}), but {here}",
                    "Read WORLD_SIZE and RANK from the environment, as torchrun sets them"
                    + (f", or use --world-size {asked}" if name == "world_size" else ""),
                )
        self._backend = _backend_of(backend)
        self._init(_FAKE, rank=self.place.rank, world_size=self.place.world_size, store=self._store)
        self.initialized = True
        self._is_eager = given.get("device_id") is not None
        if self._is_eager:
            self._connect(dist.group.WORLD)

    def new_group(self, ranks: Any = None, timeout: Any = None, backend: Any = None, *_args: Any, **how: Any) -> Any:
        """Return a group without communication."""
        described = {"group_desc": how["group_desc"]} if how.get("group_desc") else {}
        group = self._new_group(ranks, **described)
        if self._is_eager and isinstance(group, dist.ProcessGroup):
            self._connect(group)
        return group

    def get_backend(self, group: Any = None) -> str:
        """Return the backend that the program asked for."""
        self._get_backend(group)  # raises if there is no process group
        return self._backend

    # -- communication ----------------------------------------------------------------------------------------------

    @property
    def nccl_bytes(self) -> int:
        """Return the memory that NCCL would use; 0 if the program's backend is another one."""
        return self.communicators.nccl_bytes if self._backend == "nccl" else 0

    def _see(self, func: Any, args: Any, kwargs: Any) -> None:
        self.communicators.see(func, args, kwargs)

    def _connect(self, group: Any) -> None:
        self.communicators.connect(group)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function for objects that counts the communication, which is of tensors on the GPU."""
        parameters = list(inspect.signature(function).parameters)

        def count_and_call(*args: Any, **given: Any) -> Any:
            bound = dict(zip(parameters, args, strict=False)) | given
            group: Any = bound.get("group") or dist.group.WORLD
            if name in ("send_object_list", "recv_object_list"):
                other = bound.get("dst", bound.get("src"))
                in_group = bound.get("group_dst", bound.get("group_src"))
                if other is not None:
                    in_group = dist.get_group_rank(group, other)
                ranks = () if in_group is None else (in_group,)
                sends, receives = (ranks, ()) if name == "send_object_list" else ((), ranks)
                self.communicators.transfer(group, sends, receives, is_pair=not bound.get("use_batch"))
            else:
                self.communicators.collective(group)
            return function(*args, **given)

        return count_and_call

    def _batch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``batch_isend_irecv``; its transfers use the communicator of the whole group."""

        def batch_isend_irecv(*args: Any, **given: Any) -> Any:
            self.communicators.is_batch = True
            try:
                return function(*args, **given)
            finally:
                self.communicators.is_batch = False

        return batch_isend_irecv

    # -- processes --------------------------------------------------------------------------------------------------

    def spawn(
        self, fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, *_args: Any, **_how: Any
    ) -> EndedProcesses | None:
        """Call a function in this process as this rank, instead of in one process per GPU.

        Raises:
            RankError: the program wants another number of processes.
        """
        if nprocs != self.place.local_world_size:
            raise RankError(
                f"{caller()}: spawn(nprocs={nprocs}), but {self.place.local_world_size} ranks run on a host with "
                f"--world-size {self.place.world_size}",
                "Start torch.cuda.device_count() processes",
            )
        self._say(f"{caller()}: torch.multiprocessing.spawn called its function in this process.")
        self.is_spawned = True
        fn(self.place.local_rank, *args)
        return None if join else EndedProcesses()


def expect_one_rank(patches: Patches, mode: SimulatedMode, say: Callable[[str], None]) -> None:
    """Simulate process groups of one rank, and refuse those of several: the program would wait for the others."""
    alone, plain = OneRank(RankPlace(0, 1), NoMessages(), say), dist.init_process_group
    alone.install_groups(patches, mode)

    def init_process_group(*args: Any, **given: Any) -> None:
        """Initialize a process group of one rank.

        Raises:
            RankError: the program asks for more.
        """
        asked = int(given.get("world_size", args[_WORLD_SIZE] if len(args) > _WORLD_SIZE else -1))
        ranks = asked if asked != -1 else int(os.environ.get("WORLD_SIZE", "0"))
        if ranks > 1:
            raise RankError(
                f"{caller()}: init_process_group waits for {ranks} ranks, and one is simulated",
                f"Simulate all of them with --world-size {ranks}",
            )
        if ranks == 1:
            alone.init_process_group(*args, **given)
        else:
            plain(*args, **given)  # the number of ranks is not known, as in a program that torchrun has to start

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_args: Any, **_how: Any) -> None:
        raise RankError(
            f"{caller()}: torch.multiprocessing.spawn starts processes that are not simulated",
            f"Simulate them with --world-size {nprocs}",
        )

    put_everywhere(patches, "init_process_group", init_process_group)
    patches.put(torch.multiprocessing, "spawn", spawn)
    patches.put(sys.modules["torch.multiprocessing.spawn"], "spawn", spawn)


def put_everywhere(patches: Patches, name: str, function: Any) -> None:
    """Replace a function of ``torch.distributed`` in every module of torch that has imported it."""
    plain = getattr(dist, name, None)
    if plain is None:
        return
    for module_name, module in items_of(sys.modules):
        if module_name.startswith("torch.distributed") and vars(module).get(name) is plain:
            patches.put(module, name, function)


def _backend_of(asked: Any) -> str:
    """Return the backend for GPUs in ``"nccl"``, ``"cpu:gloo,cuda:nccl"`` or None."""
    for part in str(asked or "nccl").lower().split(","):
        device, _, backend = part.rpartition(":")
        if device in ("", "cuda"):
            return backend
    return "nccl"


def _refuse_store(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise RankError(
            f"{caller()}: torch.distributed.{name} waits for other ranks, and they are not running",
            "Use init_process_group(), or estimate the program without its own store",
        )

    return refuse


def _refuse_process(process: Any) -> None:
    raise RankError(f"{caller()}: the program starts a process itself ({process.name})", _LAUNCH)
