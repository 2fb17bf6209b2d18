"""Record single training iterations on request, in memory. Between two recordings, nothing is installed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.calls import OutermostCalls
from gpuledger.collect.adapter.guard import Guard, describe, take_out_all
from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.program_objects import (
    grad_of,
    is_leaf,
    is_on_card,
    layout_of,
    local_part,
    modules_below,
    named_parameters,
    parameter_groups,
    without_overrides,
)
from gpuledger.collect.adapter.uncompiled import keep_uncompiled
from gpuledger.collect.adapter.user_history import UserHistory
from gpuledger.collect.attribution.live_objects import LiveObjects
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.attribution.recorder import Recorder
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import TagTable
from gpuledger.collect.launch.settings import RecordSettings
from gpuledger.collect.memory.cuda_history import CudaRecorder
from gpuledger.collect.memory.device_readings import CardReader
from gpuledger.collect.memory.window import MemoryWindow
from gpuledger.collect.session.active import current
from gpuledger.collect.session.outer_run import find_outer_run
from gpuledger.collect.session.recorders import describe_cuda, describe_process, make_dispatch_recorder
from gpuledger.collect.steps.step_counter import StepCounter
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import STEP_KINDS, Part
from gpuledger.model.journal.reading import Journal, journal_of

_ALL_STEPS = RecordSettings(Path(), first_step=0, last_step=1 << 40, stacks=False)
"""Settings of a recording without an end, drained only if it becomes long."""


class IterationRecorder:
    """Records iterations of one model on request. Call :meth:`cancel` before dropping the object.

    Attributes:
        problem: Why the last iteration could not be recorded; "" if it was.
        gradient_bytes: Parameter name -> largest size of its gradient in the iteration, in bytes.
    """

    def __init__(self, model: nn.Module) -> None:
        keep_uncompiled()
        self.problem = ""
        self.gradient_bytes: dict[str, int] = {}
        # the frames are part of a reference cycle, which would keep the program's tensors alive
        self._model = weakref.ref(model)
        self._registry = _ScannedOnce()
        self._known = Part()
        self._card: CardReader | None = None
        self._watch: OutermostCalls | None = None
        self._under_way: _UnderWay | None = None
        self._trains = False
        os.register_at_fork(after_in_child=_leaving(weakref.ref(self)))

    def begin_at_call(self) -> None:
        """Begin at the next call of an outermost module. Includes gradients if an earlier iteration had some."""
        self.cancel()
        self.problem = _why_not_beside_another()
        if self.problem:
            return  # no second observer of calls beside a recording in progress
        absorbs = Guard(self._fail).absorbs
        self._watch = OutermostCalls(lambda module, _args, _kwargs: self._called(module), lambda _module: None, absorbs)
        self._watch.install()

    def begin(self) -> None:
        """Start recording. If that is not possible, ``problem`` says why."""
        self.cancel()
        self.gradient_bytes = {}
        self.problem = _why_not()
        if self.problem:
            return
        try:
            self._under_way = self._start()
        except Exception as error:  # an error of gpuledger must never reach the program
            self._fail(error)

    def end(self) -> Journal | None:
        """Stop recording. Return the journal; None if nothing was recorded."""
        under_way = self._under_way
        if under_way is None:
            return None
        try:
            self._note_gradients()
            under_way.window.close("end of iteration")
            self._registry.optimizers.update(under_way.steps.optimizers)
            return journal_of([self._known, *under_way.journal.parts])
        except Exception as error:  # an error of gpuledger must never reach the program
            self._fail(error)
            return None
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Remove everything and drop the recording."""
        if self._watch is not None:
            self._watch.remove()
            self._watch = None
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.take_out()

    def module_ids(self) -> frozenset[int]:
        """Return the ids of the model's modules."""
        model = self._model()
        modules = () if model is None else modules_below(model)
        numbers = (self._registry.module_ids.get(id(module)) for _, _, module in modules)
        return frozenset(number for number in numbers if number is not None)

    def _called(self, _module: nn.Module) -> None:
        with_gradients = torch.is_grad_enabled()
        if with_gradients or not self._trains:
            self._trains = with_gradients
            self.begin()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _start(self) -> _UnderWay:
        guard, tags, stacks = Guard(self._fail), TagTable(), StackTable()
        journal = _KeptJournal([tags, self._registry, stacks], self._known)
        recorder, card, history = self._recorder(journal, tags, stacks, guard)
        steps = StepCounter(
            guard,
            before_optimizer=lambda optimizer: window.before_optimizer(optimizer),
            after_optimizer=lambda optimizer: window.after_optimizer(optimizer),
            ended=lambda kind, start_ns, end_ns: _end_step(window, journal, steps, (kind, start_ns, end_ns)),
        )
        steps.seen = 1  # the program is running already: the recording begins between two steps
        window = _Window(
            recorder,
            journal,
            steps,
            _ALL_STEPS,
            tables=(tags, self._registry, stacks),
            card=card,
            begins_late=True,
            guard=guard,
        )
        window.note_gradients = self._note_gradients
        under_way = _UnderWay(window, journal, steps, guard, history)
        model = self._model()
        if model is not None:
            self._registry.register(model)
        self._note_gradients()
        try:
            steps.install()
            window.open()
        except BaseException:
            under_way.take_out()
            raise
        return under_way

    def _recorder(
        self, journal: RankJournal, tags: TagTable, stacks: StackTable, guard: Guard
    ) -> tuple[Recorder, CardReader | None, UserHistory | None]:
        """Return a recorder for the model's device, the GPU's reader, and the detector of the program's own history."""
        describe_process(journal)
        model = self._model()
        with without_overrides():
            on_card = model is not None and any(is_on_card(parameter) for _, parameter in named_parameters(model))
        why_not = torch_private.keeps_cuda_history() if on_card else None
        if not on_card or why_not is not None:
            return make_dispatch_recorder(journal, (tags, stacks), guard, with_cuda=on_card), None, None
        recorder = CudaRecorder(stacks, tags)
        self._card = self._card or CardReader()
        describe_cuda(journal, recorder, self._card)
        return recorder, self._card, UserHistory(guard(self._give_way), guard.absorbs)

    def _note_gradients(self, parameters: Iterable[Any] | None = None) -> None:
        """Store the largest size of each gradient, of all parameters or of the given ones."""
        some = None if parameters is None else {id(parameter) for parameter in parameters}
        model = self._model()
        with without_overrides():
            for name, parameter in () if model is None else named_parameters(model):
                wanted = is_leaf(parameter) and (some is None or id(parameter) in some)
                gradient = grad_of(parameter) if wanted else None
                if gradient is not None:
                    size = own_bytes(gradient)
                    self.gradient_bytes[name] = max(self.gradient_bytes.get(name, 0), size)

    def _give_way(self) -> None:
        """Stop recording, because the program starts its own memory history."""
        self.cancel()
        self.problem = "the program started its own memory history"

    def _fail(self, error: BaseException) -> None:
        """Handle an error of gpuledger: remove everything and let the program continue."""
        if os.environ.get("GPULEDGER_DEBUG"):
            raise error
        self.problem = f"an internal error of gpuledger: {describe(error)}"
        try:
            self.cancel()
        except Exception as another:
            self.problem += f"; and while stopping: {describe(another)}"


def own_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor's own elements, not of its whole storage; of the local shard for a DTensor."""
    local = local_part(tensor)
    if layout_of(local) is torch.sparse_coo:
        return own_bytes(local._indices()) + own_bytes(local._values())
    return int(local.numel() * local.element_size())


class _KeptJournal(RankJournal):
    """A journal kept in memory. ``known`` keeps names and modules, which are written only once, for later parts."""

    keeps_steps = False

    def __init__(self, sources: list[Any], known: Part) -> None:
        super().__init__(Path, sources)
        self.parts: list[Part] = []
        self._known = known

    def write(self) -> None:
        """Keep the pending rows as one part."""
        self.pass_on(self._keep)

    def _keep(self, part: Part) -> None:
        self._known.names += part.names
        self._known.modules += part.modules
        part.names, part.modules = [], []
        self.parts.append(part)


class _ScannedOnce(ModuleRegistry):
    """Searches the process for modules and optimizers once. Later ones are registered on first use."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers = WeakIdentitySet()
        self._scanned = False

    def register_alive(self, living: LiveObjects) -> list[Any]:
        """Return the live optimizers that are known."""
        if not self._scanned:
            self._scanned = True
            self.optimizers.update(super().register_alive(living))
        return list(self.optimizers)


class _Window(MemoryWindow):
    """A memory recording that also measures gradients whenever they exist."""

    note_gradients: Callable[..., None]

    def before_optimizer(self, optimizer: Any) -> None:
        """Record the start of an optimizer step. It can run inside backward, and can free its gradients afterwards."""
        inside = self.phases.phase == Phase.BACKWARD
        self.note_gradients(_parameters(optimizer) if inside else None)
        super().before_optimizer(optimizer)

    def on_backward_end(self) -> None:
        """Record the end of a backward pass."""
        self.note_gradients()
        super().on_backward_end()


@dataclass(frozen=True)
class _UnderWay:
    """Everything that is installed while an iteration is recorded."""

    window: _Window
    journal: _KeptJournal
    steps: StepCounter
    guard: Guard
    history: UserHistory | None

    def take_out(self) -> None:
        """Remove everything. Can be called more than once."""
        self.guard.ended = True
        history = [] if self.history is None else [self.history.remove]
        take_out_all([self.steps.remove, *history, self.window.take_out, self.window.close_recorder])


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in parameter_groups(optimizer) for parameter in group]


def _end_step(window: MemoryWindow, journal: RankJournal, steps: StepCounter, step: tuple[str, int, int]) -> None:
    kind, start_ns, end_ns = step
    journal.part.add(
        "steps",
        step=steps.seen,
        kind=STEP_KINDS.index(kind),
        recorded=True,
        start_ns=start_ns,
        end_ns=end_ns,
    )
    window.end_step()


def _why_not() -> str:
    """Return why recording is not possible now; "" if it is."""
    problem = _why_not_beside_another()
    if problem:
        return problem
    if torch_private.history_enabled():
        return "the program keeps its own memory history"
    return ""


def _why_not_beside_another() -> str:
    """Return which recording is in progress in this process; "" if none is."""
    outer = find_outer_run()
    if outer is not None:
        return f"`gpuledger run` records this process into {outer.name}"
    return "" if current() is None else "another recording is active in this process"


def _leaving(recorder: weakref.ref[IterationRecorder]) -> Callable[[], None]:
    """Return the function that a forked child calls first. The recording stays with its parent."""

    def leave() -> None:
        left = recorder()
        if left is not None:
            left.cancel()

    return leave
