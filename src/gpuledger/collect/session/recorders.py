"""Chooses what records a process, and when that can begin: the allocator's history of a GPU, or the dispatcher."""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from gpuledger.cards.opening import has_driver
from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.calls import FirstCall, in_data_worker
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.user_history import UserHistory
from gpuledger.collect.adapter.user_profiler import ProfilerStart
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.memory import out_of_memory
from gpuledger.collect.memory.cuda_history import CudaRecorder
from gpuledger.collect.memory.device_readings import CardReader

if TYPE_CHECKING:
    from gpuledger.collect.memory.dispatch import DispatchRecorder
    from gpuledger.collect.session.session import Session


class RecorderFactory(Protocol):
    """Gives a session its recorder."""

    def begin(self, session: Session) -> None:
        """Have :meth:`Session.adopt` called with a recorder: now, or as soon as the program has got so far."""

    def begin_after_step(self, session: Session) -> None:
        """An optimizer has stepped, and the session has no recorder yet."""

    def stop_watching(self) -> None:
        """Watch nothing of the program's any more; called again, do nothing."""


class ProcessRecorders:
    """Records CUDA through the allocator's history once it is initialised, and everything else by the dispatcher."""

    def __init__(self) -> None:
        self._user_history: UserHistory | None = None
        self._user_profiler: ProfilerStart | None = None

    def begin(self, session: Session) -> None:
        """Begin now, or have whoever initialises CUDA or calls the first module begin."""
        if _wants_cuda(session.settings):
            torch.cuda._lazy_call(session.guard(partial(self._begin_cuda, session)))
        elif multiprocessing.parent_process() is None and "--multiprocessing-fork" not in sys.orig_argv:
            self._begin_dispatch(session)
        else:
            session.watch_calls(FirstCall(session.guard(partial(self._first_call, session)), session.guard.absorbs))

    def begin_after_step(self, session: Session) -> None:
        """Record CPU tensors where the program trains without having touched its GPU."""
        if not torch.cuda.is_initialized():
            self._begin_dispatch(session, "the program did not use the GPU")

    def stop_watching(self) -> None:
        """Take out what sees that the program starts a history or a profiler of its own."""
        for watch in (self._user_history, self._user_profiler):
            if watch is not None:
                watch.remove()
        self._user_history = self._user_profiler = None

    def _begin_cuda(self, session: Session) -> None:
        """CUDA has just been initialised by the program."""
        if session.window is not None:
            return
        why_not = torch_private.keeps_cuda_history()
        if why_not is not None:
            self._begin_dispatch(session, why_not)
            return
        if torch_private.history_enabled():
            session.journal.note(
                "Nothing was recorded: the program keeps its own memory history, and only one can be active."
            )
            session.end()
            return
        recorder, card = CudaRecorder(session.stacks, session.tags), CardReader()
        out_of_memory.watch(session.guard.for_good, session.ran_out_of_memory)
        describe_cuda(session.journal, recorder, card)
        self._user_history = UserHistory(session.guard(session.give_way), session.guard.absorbs)
        session.adopt(recorder, card)

    def _begin_dispatch(self, session: Session, why_not_cuda: str | None = None) -> None:
        if session.window is not None:
            return
        if why_not_cuda is not None:
            session.journal.note(
                f"Tensors were recorded at PyTorch's dispatcher, not in the CUDA allocator: {why_not_cuda}."
            )
        recorder = make_dispatch_recorder(
            session.journal, (session.tags, session.stacks), session.guard, with_cuda=why_not_cuda is not None
        )
        self._user_profiler = ProfilerStart(session.guard(session.give_way_to_profiler))
        session.adopt(recorder, None)

    def _first_call(self, session: Session) -> None:
        """Begin in a child of multiprocessing that runs a model; a data worker leaves no trace."""
        if not in_data_worker():
            self._begin_dispatch(session)


def describe_process(journal: RankJournal) -> None:
    """Write down which process this is, and its torch."""
    journal.fact(pid=os.getpid(), torch_version=torch.__version__, cuda_version=torch.version.cuda)


def describe_cuda(journal: RankJournal, recorder: CudaRecorder, card: CardReader) -> None:
    """Write down which devices are recorded through the allocator's history."""
    journal.fact(
        recorder=recorder.kind,
        devices=card.describe(list(recorder.devices())),
        workspace_bytes=torch_private.workspace_bytes(torch.cuda.current_device()),
    )


def make_dispatch_recorder(
    journal: RankJournal, tables: tuple[TagTable, StackTable], guard: Guard, *, with_cuda: bool
) -> DispatchRecorder:
    """Return what records CPU tensors by the dispatcher, or with ``with_cuda`` CUDA ones too; write it down."""
    from gpuledger.collect.memory.dispatch import DispatchRecorder

    tags, stacks = tables
    recorder = DispatchRecorder(stacks, tags, guard, devices=("cuda", "cpu") if with_cuda else ("cpu",))
    journal.fact(recorder=recorder.kind, devices=[{"device_idx": -1, "name": "CPU tensors", "total_bytes": None}])
    return recorder


def _wants_cuda(settings: RecordSettings) -> bool:
    if settings.devices == "cpu" or torch.version.cuda is None:
        return False
    return settings.devices == "cuda" or has_driver()
