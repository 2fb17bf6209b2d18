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
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuledger.collect import out_of_memory, torch_private
from gpuledger.collect.calls import FirstCall, OutermostCalls
from gpuledger.collect.card import CardReader
from gpuledger.collect.identities import Sightings
from gpuledger.collect.memory_cuda import CudaRecorder
from gpuledger.collect.modules import ModuleTracker
from gpuledger.collect.phases import Phases
from gpuledger.collect.rank_journal import RankJournal
from gpuledger.collect.ranks import claim_rank
from gpuledger.collect.recorder import Recorder
from gpuledger.collect.roster import Roster
from gpuledger.collect.settings import RecordSettings, settings_from
from gpuledger.collect.stacks import StackBook
from gpuledger.collect.steps import StepCounter
from gpuledger.collect.tags import TagBook
from gpuledger.collect.uncompiled import keep_uncompiled
from gpuledger.collect.user_history import UserHistory
from gpuledger.errors import UsageError
from gpuledger.model.accounts import Phase
from gpuledger.model.journal import OWN_ERROR, STEP_KINDS
from gpuledger.model.run import rank_directories

DRAIN_EVENTS = 100_000
"""Events after which a long window is drained at the next step's end."""

EVENT_BYTES = 512
"""Host memory an event takes while it waits: about 250 bytes in the allocator, as much again while it is drained."""

ALL_STEPS = 1 << 40
"""Stands for a recording without a last step."""

TIMED_STEPS = 10
"""Steps after the window of which only the time is taken."""


class Session:
    """Records one process into ``rank-N/journal``."""

    def __init__(self, settings: RecordSettings, *, rank_directory: Callable[[], Path] | None = None) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.ended = False
        self.recorder: Recorder | None = None
        self.stacks = StackBook()
        self.tags = TagBook()
        self.roster = Roster()
        self._begins_late = rank_directory is not None  # asked for from Python: the program is under way
        claim = rank_directory or (lambda: claim_rank(settings.run_directory))
        self.journal = RankJournal(claim, [self.tags, self.roster, self.stacks])
        self._recording = False
        self._opened = False
        self._card: CardReader | None = None
        self._calls: FirstCall | OutermostCalls | None = None
        self._user_history: UserHistory | None = None
        self._alive_enrolled = False
        self._phases_before: list[Phase] = []
        self._drained_events = 0
        self._most_events = 0
        self._oom: list[dict[str, Any]] = []

    # -- beginning ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Choose a recorder and wait for the moment it can begin. Called when torch has just been imported."""
        keep_uncompiled()
        os.register_at_fork(after_in_child=_leaving(weakref.ref(self)))
        atexit.register(self.finish, "exit")
        last_step = self.settings.last_step
        self.journal.fact(
            pid=self.pid,
            torch_version=torch.__version__,
            cuda_version=torch.version.cuda,
            python_version=platform.python_version(),
            steps_asked=[self.settings.first_step, None if last_step >= ALL_STEPS else last_step],
            stacks=self.settings.stacks,
        )
        self.steps = StepCounter(
            self._guarded,
            before_optimizer=self._before_optimizer,
            after_optimizer=self._after_optimizer,
            ended=self._step_ended,
        )
        self._guarded(self._begin)()

    def _begin(self) -> None:
        """Begin now, or have whoever initialises CUDA or calls the first module begin."""
        if self._wants_cuda():
            torch.cuda._lazy_call(self._guarded(self._begin_cuda))
        elif multiprocessing.parent_process() is None and "--multiprocessing-fork" not in sys.orig_argv:
            self._begin_dispatch(None)
        else:
            self._watch_calls(FirstCall(self._guarded(self._first_call)))

    def _wants_cuda(self) -> bool:
        if self.settings.devices == "cpu" or torch.version.cuda is None:
            return False
        return self.settings.devices == "cuda" or os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg")

    def _begin_cuda(self) -> None:
        """CUDA has just been initialised by the program."""
        if self.recorder is not None:
            return
        why_not = torch_private.keeps_cuda_history()
        if why_not is not None:
            self._begin_dispatch(why_not)
            return
        if torch_private.history_enabled():
            self.journal.note("Nothing was recorded: the program keeps a memory history of its own, which goes first.")
            self._end()
            return
        recorder = CudaRecorder(self.stacks, self.tags)
        self._card = CardReader()
        out_of_memory.watch(self._guarded_for_good, self._ran_out_of_memory)
        self.journal.fact(
            devices=self._card.describe(list(recorder.devices())),
            workspace_bytes=torch_private.workspace_bytes(torch.cuda.current_device()),
        )
        self._user_history = UserHistory(self._guarded(self._give_way))
        self._adopt(recorder)

    def _begin_dispatch(self, why_not: str | None) -> None:
        """Record through the dispatcher: CPU tensors, or CUDA ones where the allocator keeps no history."""
        if self.recorder is not None:
            return
        from gpuledger.collect.memory_dispatch import DispatchRecorder

        if why_not is not None:
            self.journal.note(f"Recorded by the dispatch-mode recorder: {why_not}.")
        self.journal.fact(devices=[{"device_idx": -1, "name": "CPU tensors", "total_bytes": None}])
        kinds = ("cpu",) if why_not is None else ("cuda", "cpu")
        self._adopt(DispatchRecorder(self.stacks, self.tags, self.fail, devices=kinds))

    def _first_call(self) -> None:
        """Begin in a child of multiprocessing that runs a model; a data worker leaves no trace."""
        if not _in_data_worker():
            self._begin_dispatch(None)

    def _adopt(self, recorder: Recorder) -> None:
        self._watch_calls(None)
        keep_uncompiled()
        self.journal.fact(recorder=recorder.kind)
        self.phases = Phases(recorder, self.tags)
        self.sightings = Sightings(self.roster, recorder.counts)
        self.journal.sources.append(self.sightings)
        self.tracker = ModuleTracker(
            self.phases,
            self.roster,
            on_outermost=self._on_outermost,
            on_outermost_end=self._on_outermost_end,
            on_backward_end=self._on_backward_end,
            on_error=self.fail,
        )
        self.recorder = recorder
        if self.steps.seen + 1 >= self.settings.first_step:
            self.open_window()
        elif not self.steps.trained:
            self._watch_calls(OutermostCalls(self._guarded(self._call_began), self._guarded(self._call_ended)))

    def _watch_calls(self, watch: FirstCall | OutermostCalls | None) -> None:
        """Have one light watch at the most."""
        if self._calls is not None:
            self._calls.remove()
        self._calls = watch
        if watch is not None:
            watch.install()

    # -- the window -----------------------------------------------------------------------------------------------

    def open_window(self) -> None:
        """Begin recording allocations."""
        if self._recording or self.ended or self.recorder is None:
            return
        started_ns = time.time_ns()
        self._watch_calls(None)
        self.recorder.open(self.journal.part)
        self._drained_events += self._waiting_events()
        self._recording = self._opened = True
        if self.steps.seen:
            self.phases.step, self.phases.phase = self.steps.seen + 1, Phase.BETWEEN
        self.phases.start()
        self.tracker.install()
        self._read_counters("open")
        if self.steps.seen or self._begins_late:
            self._enroll_alive()
            self._alive_enrolled = bool(self.steps.seen)
        self._begin_recorded_step()
        self.journal.pause("open", started_ns)
        self.steps.restart_clock()

    def close_window(self, reason: str) -> None:
        """End recording: the last history, a full snapshot, and nothing of ours stays installed."""
        if not self._recording or self.recorder is None:
            return
        started_ns = time.time_ns()
        self._recording = False
        self.tracker.remove()
        if self._alive_enrolled:
            self._see_again()
        else:
            self._enroll_alive()
        self._read_counters("close")
        self._note_recorder_bytes()
        self.recorder.close(self.journal.part, "close")
        self._stop_watching_history()
        self.journal.fact(closed=reason)
        self.journal.pause("close", started_ns)
        self._write()

    def _end(self) -> None:
        """Take out everything that is left."""
        self.ended = True
        self._take_out()

    def _take_out(self) -> None:
        self._recording = False
        if self.recorder is not None:
            self.tracker.remove()
        self._watch_calls(None)
        self.steps.remove()
        self._stop_watching_history()

    def _stop_watching_history(self) -> None:
        if self._user_history is not None:
            self._user_history.remove()
            self._user_history = None

    def finish(self, reason: str = "exit") -> None:
        """Close what is open and write the last of the journal. Called at exit and at the end of ``record``."""
        atexit.unregister(self.finish)
        if os.getpid() != self.pid:
            return
        try:
            if self._stood_by():
                self._close_recorder()
                self._end()
                return
            self.close_window(reason)
            self._end()
            self._close_recorder()
            if self.recorder is None or not self._opened:
                self.journal.fact(closed=reason)
            if reason == "exit" and isinstance(self.recorder, CudaRecorder):
                self.recorder.read_counters(self.journal.part, self.steps.seen, "exit", time.time_ns())
            if self.recorder is not None or self.journal.part.notes:
                self._write()
        except Exception as error:
            self.fail(error)

    def _stood_by(self) -> bool:
        """Return whether this process did nothing while others of the run recorded: torchrun's own does so."""
        if self.recorder is None or self.journal.begun or self.journal.part.notes or self.steps.seen:
            return False
        idle = not any(any(pair) for pair in self.recorder.counts().values())
        return idle and bool(rank_directories(self.settings.run_directory))

    def _leave_to_parent(self) -> None:
        """This is a forked child: the recording belongs to the parent."""
        if not self.ended:
            self._end()

    # -- steps ----------------------------------------------------------------------------------------------------

    def mark_step(self) -> None:
        """The program says itself that a step has ended."""
        self._guarded(self.steps.mark)()

    def _on_outermost(self, module_id: int, args: Any, kwargs: Any) -> None:
        self.roster.note_called(module_id)
        if self.roster.holds_tensors(module_id):
            self.steps.call_began(module_id, self._expects_training)
        self.sightings.see_new_weights()
        self.sightings.see_inputs(module_id, args, kwargs)

    def _on_outermost_end(self, module_id: int) -> None:
        if self.roster.holds_tensors(module_id):
            self.steps.call_ended(module_id, self._expects_training)

    def _on_backward_end(self) -> None:
        self.sightings.see_gradients()
        if self._waiting_events() > 2 * DRAIN_EVENTS:  # a long step, or steps that nobody counts
            self._drain()

    def _call_began(self, module: nn.Module) -> None:
        """An outermost module is entered while nothing is recorded."""
        module_id = self.roster.enroll(module)
        if self.roster.holds_tensors(module_id):
            self.steps.call_began(module_id, self._expects_training)

    def _call_ended(self, module: nn.Module) -> None:
        self._on_outermost_end(self.roster.enroll(module))

    def _expects_training(self) -> bool:
        """Return whether an optimizer is there: then calls before its first step are no steps of their own."""
        if not self._alive_enrolled:
            self._scan()
        return bool(self.steps.optimizers)

    def _before_optimizer(self, optimizer: Any) -> None:
        if isinstance(self._calls, OutermostCalls):
            self._watch_calls(None)
        if self._recording:
            self._phases_before.append(self.phases.phase)
            self._meet(optimizer)
            if self.phases.phase == Phase.BACKWARD:
                self.sightings.see_gradients_of(optimizer)
            self.phases.enter_optimizer()

    def _meet(self, optimizer: Any) -> None:
        """Find out whose parameters an optimizer updates, where no module that holds them was called yet."""
        if not self.sightings.knows(optimizer):
            self._scan()
            self.sightings.see_loose_parameters(optimizer)

    def _after_optimizer(self, optimizer: Any) -> None:
        if self.recorder is None and not torch.cuda.is_initialized():
            self._begin_dispatch("a card is there, but the program has not touched it")
        elif self._recording:
            self.sightings.see_optimizer(optimizer)
            before = self._phases_before.pop() if self._phases_before else Phase.BETWEEN
            self.phases.leave_optimizer(Phase.BACKWARD if before == Phase.BACKWARD else Phase.BETWEEN)

    def _step_ended(self, kind: str, start_ns: int, end_ns: int) -> None:
        """Open, drain or close the window where it is time."""
        self.journal.part.add(
            "steps",
            step=self.steps.seen,
            kind=STEP_KINDS.index(kind),
            recorded=self._recording,
            start_ns=start_ns,
            end_ns=end_ns,
        )
        if self._recording:
            self._end_recorded_step()
        elif self.recorder is not None and self.steps.seen + 1 == self.settings.first_step:
            self.open_window()
        elif self.steps.seen >= self.settings.last_step + TIMED_STEPS:
            self._end()

    def _end_recorded_step(self) -> None:
        self._read_counters("step_end")
        if not self._alive_enrolled:
            self._scan()
        if self.steps.seen >= self.settings.last_step:
            self.close_window("last step")
            return
        if self.steps.seen == self.settings.first_step or self._waiting_events() > DRAIN_EVENTS:
            self._drain()
        self._begin_recorded_step()
        self.phases.change(self.phases.phase, step=self.steps.seen + 1)

    def _begin_recorded_step(self) -> None:
        """Keep Python stacks in the last step of the window."""
        if self.recorder is not None and self.settings.stacks and self.steps.seen + 1 >= self.settings.last_step:
            self.recorder.set_stacks(True)
            self.tracker.intern_stack = self.stacks.intern_frame

    def _waiting_events(self) -> int:
        assert self.recorder is not None
        return sum(sum(pair) for pair in self.recorder.counts().values()) - self._drained_events

    def _drain(self) -> None:
        assert self.recorder is not None
        started_ns = time.time_ns()
        waiting = self._note_recorder_bytes()
        self.recorder.drain(self.journal.part, "drain")
        self._drained_events += waiting
        self.journal.pause("drain", started_ns)
        self._write()

    def _note_recorder_bytes(self) -> int:
        """Keep the most memory our records have taken; return the events that wait."""
        waiting = self._waiting_events()
        self._most_events = max(self._most_events, waiting)
        self.journal.fact(recorder_bytes=self._most_events * EVENT_BYTES)
        return waiting

    def _scan(self) -> None:
        """Look for what is alive while the program waits."""
        started_ns = time.time_ns()
        self._enroll_alive()
        self.journal.pause("scan", started_ns)

    def _enroll_alive(self) -> None:
        """Find modules and optimizers that are alive but were not met, and note where their tensors are."""
        self._alive_enrolled = True
        self.steps.optimizers.update(self.roster.enroll_alive())
        if self._recording:
            self._see_again()

    def _see_again(self) -> None:
        """Note where all weights, buffers, gradients and optimizer states are now."""
        self.sightings.see_weights()
        for optimizer in list(self.steps.optimizers):
            if not self.sightings.knows(optimizer):
                self.sightings.see_loose_parameters(optimizer)
            self.sightings.see_optimizer(optimizer, again=True)
        self.sightings.see_gradients()

    # -- reading and writing --------------------------------------------------------------------------------------

    def _read_counters(self, reason: str) -> None:
        assert self.recorder is not None
        t_ns = time.time_ns()
        self.recorder.read_counters(self.journal.part, self.steps.seen, reason, t_ns)
        if self._card is not None:
            self._card.read(self.journal.part, t_ns)

    def _write(self) -> None:
        self.journal.fact(steps_seen=self.steps.seen)
        self.journal.write()

    # -- what can go wrong ----------------------------------------------------------------------------------------

    def _guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that no error of ours leaves it, and that does nothing once the session has ended."""
        kept = self._guarded_for_good(function)

        def guarded(*args: Any, **kwargs: Any) -> None:
            if not (torch.compiler.is_compiling() or self.ended):
                kept(*args, **kwargs)

        return guarded

    def _guarded_for_good(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that no error of ours leaves it; in a forked child it does nothing."""

        def guarded(*args: Any, **kwargs: Any) -> None:
            if os.getpid() != self.pid:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:
                self.fail(error)

        return guarded

    def fail(self, error: BaseException) -> None:
        """An error of ours: take everything out, note it, let the program go on."""
        if os.environ.get("GPULEDGER_DEBUG"):
            raise error
        self.journal.note(f"Recording stopped by an error of gpuledger's own: {_describe(error)}")
        self.journal.fact(closed=OWN_ERROR)
        self.ended = True
        for action in (self._take_out, self._close_recorder, self._write):
            try:
                action()
            except Exception as another:
                self.journal.note(f"And on the way out: {_describe(another)}")

    def _close_recorder(self) -> None:
        if self.recorder is not None:
            self.recorder.close(self.journal.part, "close")

    def _ran_out_of_memory(self, facts: dict[str, Any]) -> None:
        """Keep what held the bytes; the error itself stays the program's own."""
        self._oom.append({**facts, "step": self.steps.seen + 1})
        self.journal.fact(oom=self._oom)
        if self._recording:
            self._read_counters("oom")
            self._see_again()
            self._drain()
        elif self.recorder is not None:
            self._write()

    def _give_way(self) -> None:
        """The program starts a memory history of its own: ours ends here."""
        if self._recording:
            self.journal.note("The program started a memory history of its own; recording ended there.")
            self.close_window("program's own history")
            self._end()


def _leaving(session: weakref.ref[Session]) -> Callable[[], None]:
    """Return what a forked child does first. Python never forgets it, so it must not keep the session."""

    def leave() -> None:
        left = session()
        if left is not None:
            left._leave_to_parent()

    return leave


def _describe(error: BaseException) -> str:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})" if place else ""
    return f"{type(error).__name__}: {error}{where}"


def _in_data_worker() -> bool:
    """Return whether this process is a DataLoader's worker."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None


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


def refuse_second() -> None:
    """Do nothing where a recording can begin.

    Raises:
        UsageError: one is under way in this process.
    """
    if _session is not None and not _session.ended:
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
