"""One recorded process: when to open the window, what happens at each step, when to leave.

Nothing of this may reach the program: every entrance from torch's hooks goes through one guard, which on an error of
ours takes everything out, notes what happened and lets the program go on.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.calls import FirstCall, OutermostCalls, in_data_worker
from gpuledger.collect.adapter.guard import Guard, calling, describe, do_all
from gpuledger.collect.adapter.uncompiled import keep_uncompiled
from gpuledger.collect.adapter.user_history import UserHistory
from gpuledger.collect.adapter.user_profiler import ProfilerStart
from gpuledger.collect.attribution.module_registry import Roster
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.recorder import Recorder
from gpuledger.collect.attribution.stacks import StackBook
from gpuledger.collect.attribution.steps import StepCounter
from gpuledger.collect.attribution.tags import TagBook
from gpuledger.collect.launch.ranks import claim_rank
from gpuledger.collect.launch.settings import ALL_STEPS, RecordSettings, settings_from
from gpuledger.collect.memory import out_of_memory
from gpuledger.collect.memory.cuda_history import CudaRecorder
from gpuledger.collect.memory.device_readings import CardReader
from gpuledger.collect.memory.window import MemoryWindow
from gpuledger.collect.passes.later_passes import LaterPasses
from gpuledger.errors import UsageError
from gpuledger.model.journal.journal import OWN_ERROR, STEP_KINDS
from gpuledger.model.run import rank_directories

AT_THE_LIMIT = (
    "Some modules, tensors or steps were not seen: the program was at Python's recursion limit, without room for more."
)


class Session:
    """Records one process into ``rank-N/journal``."""

    def __init__(self, settings: RecordSettings, *, rank_directory: Callable[[], Path] | None = None) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.window: MemoryWindow | None = None
        self.from_outside = rank_directory is None  # the program knows nothing of it
        self.stacks = StackBook()
        self.tags = TagBook()
        self.roster = Roster()
        self._begins_late = rank_directory is not None  # asked for from Python: the program is under way
        claim = rank_directory or (lambda: claim_rank(settings.run_directory))
        self.journal = RankJournal(claim, [self.tags, self.roster, self.stacks])
        self._guarded = Guard(self.fail)
        self._calls: FirstCall | OutermostCalls | None = None
        self._deferred: OutermostCalls | None = None
        self._action: Callable[[], None] = lambda: None
        self._closing: OutermostCalls | None = None
        self._user_history: UserHistory | None = None
        self._user_profiler: ProfilerStart | None = None
        self._oom: list[dict[str, Any]] = []
        self.steps = StepCounter(
            self._guarded,
            before_optimizer=self._before_optimizer,
            after_optimizer=self._after_optimizer,
            ended=self._step_ended,
            weights_version=self.roster.weights_version,
        )
        self._later = LaterPasses(
            settings,
            self.journal,
            self.steps,
            self.roster,
            guard=self._guarded,
            give_up=self._end,
            see_calls=self._see_calls,
        )
        self.mark_step = self._guarded(self.steps.mark)
        """The program says itself that a step has ended."""

    @property
    def ended(self) -> bool:
        """Return whether nothing is recorded any more."""
        return self._guarded.ended

    @property
    def _is_recording(self) -> bool:
        return self.window is not None and self.window.is_open

    @property
    def _on_card(self) -> bool:
        return self.window is not None and isinstance(self.window.recorder, CudaRecorder)

    # -- beginning ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Choose a recorder and wait for the moment it can begin. Called when torch has just been imported."""
        self._guarded(self._start)()

    def _start(self) -> None:
        atexit.register(self.finish, "exit")
        keep_uncompiled()
        os.register_at_fork(after_in_child=calling(self._guarded, self._leave_to_parent))
        last_step = self.settings.last_step if self.settings.last_step < ALL_STEPS else None
        self.journal.fact(
            pid=self.pid,
            torch_version=torch.__version__,
            cuda_version=torch.version.cuda,
            python_version=platform.python_version(),
            steps_asked=[self.settings.first_step, last_step],
            stacks=self.settings.stacks,
            passes=sorted(self.settings.passes),
        )
        self.steps.install()
        self._later.install()
        self._begin()

    def _begin(self) -> None:
        """Begin now, or have whoever initialises CUDA or calls the first module begin."""
        if self._wants_cuda():
            torch.cuda._lazy_call(self._guarded(self._begin_cuda))
        elif multiprocessing.parent_process() is None and "--multiprocessing-fork" not in sys.orig_argv:
            self._begin_dispatch(None)
        else:
            self._watch_calls(FirstCall(self._guarded(self._first_call), self._guarded.absorbs))

    def _wants_cuda(self) -> bool:
        if self.settings.devices == "cpu" or torch.version.cuda is None:
            return False
        return self.settings.devices == "cuda" or os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")

    def _begin_cuda(self) -> None:
        """CUDA has just been initialised by the program."""
        if self.window is not None:
            return
        why_not = torch_private.keeps_cuda_history()
        if why_not is not None:
            self._begin_dispatch(why_not)
            return
        if torch_private.history_enabled():
            self.journal.note("Nothing was recorded: the program keeps a memory history of its own, which goes first.")
            self._end()
            return
        recorder, card = CudaRecorder(self.stacks, self.tags), CardReader()
        out_of_memory.watch(self._guarded.for_good, self._ran_out_of_memory)
        self.journal.fact(
            devices=card.describe(list(recorder.devices())),
            workspace_bytes=torch_private.workspace_bytes(torch.cuda.current_device()),
        )
        self._user_history = UserHistory(self._guarded(self._give_way), self._guarded.absorbs)
        self._adopt(recorder, card)

    def _begin_dispatch(self, why_not: str | None) -> None:
        """Record through the dispatcher: CPU tensors, or CUDA ones where the allocator keeps no history."""
        if self.window is not None:
            return
        from gpuledger.collect.memory.dispatch import DispatchRecorder

        if why_not is not None:
            self.journal.note(f"Recorded by the dispatch-mode recorder: {why_not}.")
        self.journal.fact(devices=[{"device_idx": -1, "name": "CPU tensors", "total_bytes": None}])
        kinds = ("cpu",) if why_not is None else ("cuda", "cpu")
        self._user_profiler = ProfilerStart(self._guarded(self._give_way_to_profiler))
        self._adopt(DispatchRecorder(self.stacks, self.tags, self._guarded, devices=kinds), None)

    def _first_call(self) -> None:
        """Begin in a child of multiprocessing that runs a model; a data worker leaves no trace."""
        if not in_data_worker():
            self._begin_dispatch(None)

    def _adopt(self, recorder: Recorder, card: CardReader | None) -> None:
        self._watch_calls(None)
        keep_uncompiled()
        self.journal.fact(recorder=recorder.kind)
        self.window = MemoryWindow(
            recorder,
            self.journal,
            self.steps,
            self.settings,
            books=(self.tags, self.roster, self.stacks),
            card=card,
            begins_late=self._begins_late,
            guard=self._guarded,
        )
        if self.steps.seen + 1 >= self.settings.first_step:
            self.window.open()
        else:
            self._see_calls(True)

    def _see_calls(self, wanted: bool) -> None:
        """Have a watch on outermost calls where they are the steps, above all that is in; or take it out."""
        if isinstance(self._calls, OutermostCalls):
            self._watch_calls(None)
        if wanted and not self.steps.trained:
            began, ended = self._guarded(self._call_began), self._guarded(self._call_ended)
            self._watch_calls(OutermostCalls(began, ended, self._guarded.absorbs))

    def _watch_calls(self, watch: FirstCall | OutermostCalls | None) -> None:
        """Have one light watch at the most."""
        if self._calls is not None:
            self._calls.remove()
            self._calls = None
        if watch is not None:
            self._calls = watch
            watch.install()

    # -- ending ---------------------------------------------------------------------------------------------------

    def _close_window(self, reason: str) -> None:
        if self._is_recording and self.window is not None:
            self.window.close(reason)
            self._stop_watching_program()

    def _end(self) -> None:
        """Take out everything that is left."""
        self._guarded.ended = True
        self._take_out()

    def _take_out(self) -> None:
        window = [] if self.window is None else [self.window.take_out]
        no_calls = partial(self._watch_calls, None)
        watches = [self._stop_deferred, self._stop_watching_program]
        do_all([*window, self._later.take_out, no_calls, self.steps.remove, *watches])

    def _stop_deferred(self) -> None:
        if self._deferred is not None:
            self._deferred.remove()
            self._deferred = None

    def _stop_watching_program(self) -> None:
        for watch in (self._user_history, self._user_profiler):
            if watch is not None:
                watch.remove()
        self._user_history = self._user_profiler = None

    def finish(self, reason: str = "exit") -> None:
        """Close what is open and write the last of the journal. Called at exit and at the end of ``record``."""
        try:
            atexit.unregister(self.finish)
            if os.getpid() != self.pid:
                return
            self._guarded.settle()
            if self._guarded.lacked_room:
                self.journal.note(AT_THE_LIMIT)
            if self._stood_by():
                self._close_recorder()
                self._end()
                return
            self._close_window(reason)
            self._later.finish()
            self._close_recorder()
            self._end()
            if self.window is None or not self.window.was_opened:
                self.journal.fact(closed=reason)
            if reason == "exit" and self.window is not None and self._on_card:
                self.window.recorder.read_counters(self.journal.part, self.steps.seen, "exit", time.time_ns())
            if self.window is not None or self.journal.part.notes:
                self.journal.write()
        except BaseException as error:
            if not self._guarded.absorbs(error):
                raise

    def _stood_by(self) -> bool:
        """Return whether this process did nothing while others of the run recorded: torchrun's own does so."""
        if self.window is None or self.journal.begun or self.journal.part.notes or self.steps.seen:
            return False
        return self.window.is_idle() and bool(rank_directories(self.settings.run_directory))

    def _leave_to_parent(self) -> None:
        """This is a forked child: the recording belongs to the parent."""
        if not self.ended:
            self._end()

    def _close_recorder(self) -> None:
        """Close recorder and profiler; where part of them has to stay for now, the next calls of modules try again."""
        if self.window is None:
            return
        is_closed = self.window.close_recorder() and self._later.close_profiler()
        if is_closed and self._closing is not None:
            self._closing.remove()
            self._closing = None
        elif not is_closed and self._closing is None:
            again = self._guarded.for_good(lambda *_: self._close_recorder())
            self._closing = OutermostCalls(again, lambda _: None, self._guarded.absorbs)
            self._closing.install()

    # -- steps ----------------------------------------------------------------------------------------------------

    def _call_began(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """An outermost module is entered while nothing is recorded."""
        module_id = self.roster.enroll(module)
        if self.window is not None and self.roster.holds_tensors(module_id):
            self.steps.call_began(module_id, self.window.expects_training)
            self.window.inputs.see(module_id, self.steps.seen + 1, args, kwargs)

    def _call_ended(self, module: torch.nn.Module) -> None:
        if self.window is not None:
            self.window.on_outermost_end(self.roster.enroll(module))

    def _before_optimizer(self, optimizer: Any) -> None:
        if isinstance(self._calls, OutermostCalls):
            self._watch_calls(None)
        if self.window is not None and self.window.is_open:
            self.window.before_optimizer(optimizer)
        else:
            self._later.before_optimizer()

    def _after_optimizer(self, optimizer: Any) -> None:
        if self.window is None and not torch.cuda.is_initialized():
            self._begin_dispatch("a card is there, but the program has not touched it")
        elif self.window is not None and self.window.is_open:
            self.window.after_optimizer(optimizer)
        else:
            self._later.after_optimizer()

    def _step_ended(self, kind: str, start_ns: int, end_ns: int) -> None:
        """Write the step down, and go on."""
        self.journal.fact(steps_seen=self.steps.seen)
        self.journal.part.add(
            "steps",
            step=self.steps.seen,
            kind=STEP_KINDS.index(kind),
            recorded=self._is_recording,
            start_ns=start_ns,
            end_ns=end_ns,
        )
        if self._is_recording and self.steps.seen < self.settings.last_step:
            self._go_on()
        else:
            self._outside_backward(self._go_on)

    def _outside_backward(self, action: Callable[[], None]) -> None:
        """Do something now, or at the next call of a module where autograd is at work: a step can end inside backward.

        What is put in or taken out there, a dispatch mode or a profiler, autograd would undo at its end.
        """
        if not torch_private.is_in_backward():
            action()
        elif self._deferred is None:
            self._action = action
            began = self._guarded.for_good(lambda *_: self._do_deferred())
            self._deferred = OutermostCalls(began, lambda _: None, self._guarded.absorbs)
            self._deferred.install()

    def _do_deferred(self) -> None:
        """A module is called: do what had to wait, unless it is called inside backward as well (a recomputation)."""
        if not torch_private.is_in_backward():
            self._stop_deferred()
            self._action()

    def _go_on(self) -> None:
        """A step has ended: open, drain or close the window where it is time, or go on with what follows it."""
        if self._guarded.ended:
            return
        if self._is_recording and self.window is not None:
            if self.window.end_step():
                self._close_recorder()
                self._stop_watching_program()
                self._begin_later_passes()
        elif self.window is not None and not self.window.was_opened and self.steps.seen + 1 >= self.settings.first_step:
            self._watch_calls(None)
            self.window.open()
        elif self.steps.seen > self.settings.last_step and self._later.end_step():
            self._end()
            self.journal.append()  # whatever becomes of the program from here on

    def _begin_later_passes(self) -> None:
        """The window has closed: go on with other quantities, and see calls where they are the steps."""
        if len(self.settings.passes) > 1 and self.window is not None:
            self._see_calls(True)
            self._later.begin(self.window.step_allocations)

    # -- what can go wrong ----------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """An error of ours: take everything out, note it, let the program go on."""
        if os.environ.get("GPULEDGER_DEBUG"):
            raise error
        self.journal.note(f"Recording stopped by an error of gpuledger's own: {describe(error)}")
        self.journal.fact(closed=OWN_ERROR)
        self._guarded.ended = True
        for action in (self._take_out, self._close_recorder, self.journal.write):
            try:
                action()
            except Exception as another:
                self.journal.note(f"And on the way out: {describe(another)}")

    def _ran_out_of_memory(self, facts: dict[str, Any]) -> None:
        """Keep what held the bytes; the error itself stays the program's own."""
        self._oom.append({**facts, "step": self.steps.seen + 1})
        self.journal.fact(oom=self._oom)
        if self.window is not None and self.window.is_open:
            self.window.read_counters("oom")
            self.window.see_again()
            self.window.drain()
        elif self.window is not None:
            self.journal.write()

    def _give_way_to_profiler(self) -> None:
        """The program profiles operators that pass through our recorder, and would count them twice: ours ends here."""
        if self._is_recording:
            self.journal.note("The program started a profiler of its own; recording of CPU tensors ended there.")
            self._close_window("program's own profiler")
            self._begin_later_passes()

    def _give_way(self) -> None:
        """The program starts a memory history of its own: ours ends here."""
        if self._is_recording:
            self.journal.note("The program started a memory history of its own; recording ended there.")
            self._close_window("program's own history")
            self._end()


_session: Session | None = None


def start_from_environment() -> Session | None:
    """Start recording this process as ``GPULEDGER_RUN`` says; None when it is not to be recorded."""
    global _session
    settings = settings_from()
    if settings is None or _session is not None:
        return _session
    _session = Session(settings)
    _session.start()
    return _session


def current() -> Session | None:
    """Return the recording under way in this process."""
    return _session if _session is not None and not _session.ended else None


def refuse_second() -> None:
    """Do nothing where a recording can begin.

    Raises:
        UsageError: one is under way in this process.
    """
    if current() is not None:
        raise UsageError("record: another recording is under way in this process", hint="end that one first")


def start_recording(settings: RecordSettings, rank_directory: Path) -> Session:
    """Start a recording asked for from Python.

    Raises:
        UsageError: one is under way in this process.
    """
    global _session
    refuse_second()
    _session = Session(settings, rank_directory=lambda: rank_directory)
    _session.start()
    return _session


def stop_recording(session: Session, reason: str) -> None:
    """End a recording and write the last of its journal."""
    global _session
    session.finish(reason)
    if _session is session:
        _session = None
