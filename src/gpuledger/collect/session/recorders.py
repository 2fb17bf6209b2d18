"""Select a process's memory recorder, and when it can begin: the GPU allocator's history, or a dispatch mode."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.calls import FirstCall, in_data_worker
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.user_history import UserHistory
from gpuledger.collect.adapter.user_profiler import ProfilerStart
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.launch.ranks import launched_ranks
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.memory import out_of_memory
from gpuledger.collect.memory.cuda_history import CudaRecorder
from gpuledger.collect.memory.device_readings import CardReader
from gpuledger.collect.passes.energy_cards import can_use_cuda
from gpuledger.collect.session.exit_facts import is_ended_by_parent

if TYPE_CHECKING:
    from gpuledger.collect.memory.dispatch import DispatchRecorder
    from gpuledger.collect.session.session import Session


class RecorderFactory(Protocol):
    """Provides a session with its recorder."""

    def begin(self, session: Session) -> None:
        """Call :meth:`Session.adopt` with a recorder, now or as soon as the program is ready."""

    def begin_after_step(self, session: Session) -> None:
        """Record that an optimizer has stepped before the session has a recorder."""

    def window_ended(self) -> None:
        """Remove the observers of the program that only the recorded steps need."""

    def stop_watching(self) -> None:
        """Remove all observers of the program. Can be called more than once."""


class ProcessRecorders:
    """Records CUDA with the allocator's history once it is initialized, and everything else with a dispatch mode."""

    def __init__(self) -> None:
        self._user_history: UserHistory | None = None
        self._user_profiler: ProfilerStart | None = None
        self._once = threading.Lock()
        """Acquired for good by the thread that begins: several can train, and end their first step together."""

    def begin(self, session: Session) -> None:
        """Begin now, or when the program initializes CUDA or calls its first module."""
        if _wants_cuda(session.settings):
            torch.cuda._lazy_call(session.guard(partial(self._begin_cuda, session)))
        elif multiprocessing.parent_process() is None and "--multiprocessing-fork" not in sys.orig_argv:
            self._begin_dispatch(session)
        else:
            session.calls.watch(FirstCall(session.guard(partial(self._first_call, session)), session.guard.absorbs))

    def begin_after_step(self, session: Session) -> None:
        """Record CPU tensors if the program trains without using its GPU."""
        if not torch.cuda.is_initialized():
            self._begin_dispatch(session, "the program did not use the GPU")

    def window_ended(self) -> None:
        """Remove the detector of the program's own profilers. Blocks keep the stacks that the window recorded."""
        if self._user_profiler is not None:
            self._user_profiler.remove()
            self._user_profiler = None

    def stop_watching(self) -> None:
        """Remove the detectors of the program's own memory history and profilers."""
        self.window_ended()
        if self._user_history is not None:
            self._user_history.remove()
            self._user_history = None

    def _begin_cuda(self, session: Session) -> None:
        """Begin after the program has initialized CUDA."""
        if not self._once.acquire(blocking=False):
            return
        why_not = torch_private.keeps_cuda_history()
        if why_not is not None:
            self._adopt_dispatch(session, why_not)
            return
        has_own = torch_private.history_enabled()
        recorder, card = CudaRecorder(session.stacks, session.tags, reads_programs=has_own), CardReader()
        reads_blocks = session.flight is None  # the flight recorder has a snapshot of its own
        out_of_memory.watch(session.guard.for_good, session.ran_out_of_memory, reads_blocks=reads_blocks)
        describe_cuda(session.journal, recorder, card)

        def starts() -> bool:
            recorder.read_programs(session.journal.part)
            return True

        guarded = session.guard(session.give_way), session.guard.absorbs
        self._user_history = UserHistory(*guarded, starts=starts, has_own=has_own)
        session.adopt(recorder, card)

    def _begin_dispatch(self, session: Session, why_not_cuda: str | None = None) -> None:
        if self._once.acquire(blocking=False):
            self._adopt_dispatch(session, why_not_cuda)

    def _adopt_dispatch(self, session: Session, why_not_cuda: str | None) -> None:
        if why_not_cuda is not None:
            session.journal.note(
                f"Tensors were recorded at PyTorch's dispatcher, not in the CUDA allocator: {why_not_cuda}."
            )
        recorder = make_dispatch_recorder(
            session.journal, (session.tags, session.stacks), session.guard, with_cuda=why_not_cuda is not None
        )
        if session.flight is not None:
            recorder.on_error = session.memory_errors.see
            session.memory_errors.install(session.guard)
        self._user_profiler = ProfilerStart(session.guard(session.give_way_to_profiler))
        self._user_profiler.install()
        session.adopt(recorder, None)

    def _first_call(self, session: Session) -> None:
        """Begin in a child of multiprocessing that runs a model. A DataLoader worker is not recorded."""
        if not in_data_worker():
            self._begin_dispatch(session)


def describe_process(journal: RankJournal) -> None:
    """Store the process id, the torch version, and how the process is going to end."""
    journal.fact(pid=os.getpid(), torch_version=torch.__version__, cuda_version=torch.version.cuda)
    journal.fact(is_ended_by_parent=is_ended_by_parent(), launched_ranks=launched_ranks())


def describe_cuda(journal: RankJournal, recorder: CudaRecorder, card: CardReader) -> None:
    """Store which devices are recorded with the allocator's history."""
    journal.fact(
        recorder=recorder.kind,
        devices=card.describe(list(recorder.devices())),
        workspace_bytes=torch_private.workspace_bytes(torch.cuda.current_device()),
    )


def make_dispatch_recorder(
    journal: RankJournal, tables: tuple[TagTable, StackTable], guard: Guard, *, with_cuda: bool
) -> DispatchRecorder:
    """Return a recorder for CPU tensors, and with ``with_cuda`` for CUDA tensors. Stores the choice in the journal."""
    from gpuledger.collect.memory.dispatch import DispatchRecorder

    tags, stacks = tables
    recorder = DispatchRecorder(stacks, tags, guard, devices=("cuda", "cpu") if with_cuda else ("cpu",))
    journal.fact(recorder=recorder.kind, devices=[{"device_idx": -1, "name": "CPU tensors", "total_bytes": None}])
    return recorder


def _wants_cuda(settings: RecordSettings) -> bool:
    if settings.devices == "cpu" or torch.version.cuda is None:
        return False
    return settings.devices == "cuda" or can_use_cuda()
