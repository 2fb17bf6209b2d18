"""Count steps: detect the end of each step and number it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.held_tensors import WeakIdentitySet
from gpuledger.collect.adapter.optimizer_hooks import (
    OptimizerHook,
    after_steps,
    before_steps,
    began_compiled,
    is_guarded,
)
from gpuledger.collect.adapter.program_objects import (
    parameter_groups,
    updates_of,
    without_overrides,
)
from gpuledger.collect.launch.settings import AUTO, MARK, MODULE, OPTIMIZER, name_of_call
from gpuledger.collect.steps.call_steps import ConstructorCalls, FollowedModule, HeldCalls
from gpuledger.collect.steps.compiled_steps import CompiledCalls, CompiledSteps
from gpuledger.collect.steps.followed_optimizer import FollowedOptimizer
from gpuledger.collect.steps.made_optimizers import MadeOptimizers
from gpuledger.collect.steps.replayed_steps import ReplayedGraph, ReplayedSteps
from gpuledger.collect.steps.turns import Turns

CALL, REPLAY = "call", "replay"
"""Kinds of steps."""

NAMED = 0
"""Stands for the modules that the user has named, as the id of one."""


class StepCounter:
    """Counts steps: marked by the program, or else steps of the first optimizer, or else calls of the first module.

    A replay of a CUDA graph in which a step of the optimizer was captured is a step of it. One of a graph with calls of
    modules is like a call of the followed module, or else of the first of them.
    :class:`FollowedOptimizer` decides which optimizer that is. Steps that GradScaler skips do not add steps.
    Counts between :meth:`install` and :meth:`remove`.

    Args:
        guard: Wraps every callback from torch.
        before_optimizer: Called with each optimizer before its step.
        after_optimizer: Called with each optimizer after its step, before the step is counted.
        ended: Called with ``(kind, start_ns, end_ns)`` at the end of each step.
        weights_version: Returns the number of weights, and a number that changes with every update of one. Detects an
            optimizer with a compiled step, for which torch calls no hooks.
        step_on: What ends a step; see :func:`gpuledger.collect.launch.settings.parse_step_on`.
        followed: Chooses the module with the calls that are steps; by default, the first one called.
        held: Holds back calls before a training; by default, none.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        before_optimizer: Callable[[Any], None],
        after_optimizer: Callable[[Any], None],
        ended: Callable[[str, int, int], None],
        weights_version: Callable[[], tuple[int, int]] = lambda: (0, 0),
        step_on: str = AUTO,
        followed: FollowedModule | None = None,
        held: HeldCalls | None = None,
    ) -> None:
        self.seen = 0
        self.trained = False
        self.calls_before_training = 0
        """Number of calls that were counted as steps before the first step of an optimizer."""
        self.calls_with_graph = self.calls_with_update = 0
        """Number of calls that autograd follows, and number of these after which weights were updated."""
        self.optimizers = WeakIdentitySet()
        self.module_name = name_of_call(step_on)
        """Name of the modules with the calls that are steps; None without ``call:NAME``."""
        self._step_on = step_on
        self._marked = step_on == MARK
        self.optimizer = FollowedOptimizer()
        self._followed = followed or FollowedModule()
        self._constructors = ConstructorCalls()
        self._held = held or HeldCalls(lambda: False, lambda *_: None)
        self._call_under_way, self._kind_under_way = -1, CALL
        self.prepared = 0
        """Number of the last step in which a graph was captured, or of the first replay; 0 if there is none."""
        self._weights_version = weights_version
        self._version: tuple[int, int] | None = None
        self._is_new = False
        """Whether the optimizer that steps now has not stepped before."""
        self._begun: Counter[int] = Counter()
        """Id of an optimizer -> number of its steps of which the beginning was seen and the end was not.

        A step that raises has no end.
        """
        self.started_ns = time.time_ns()
        self.is_under_way = False
        """Whether the current step has begun before the pause that :meth:`restart_clock` ends."""
        self._awaits_call = True
        self.turns = Turns()
        self._before, self._after, self._ended = before_optimizer, after_optimizer, ended
        self._guard = guard
        self._hooks: list[OptimizerHook] = []
        self._replays = ReplayedSteps(
            prepares=guard(self._prepares),
            stepped=guard(self._end_optimizer_step),
            began=guard(self._replay_began),
            ended=guard(self._replay_ended),
            guard=guard,
        )
        self._compiled = CompiledSteps(self._all_weights)
        self._compiled_calls = CompiledCalls(self._compiled_call_began, guard)
        self._made = MadeOptimizers(self.optimizers.add, guard)
        self._expects_training: Callable[[int], bool] = _never
        self._is_counting = self._misses_calls = False

    def install(self) -> None:
        """Start counting."""
        self._is_counting = True
        self._made.install()
        for register, called in ((before_steps, self._before_step), (after_steps, self._after_step)):
            if not is_guarded(register):
                self._hooks.append(register(self._guard(called), self._guard.absorbs))

    def watch_replays(self, note: Callable[[str], None]) -> None:
        """Count replays of CUDA graphs in which a step of the optimizer, or a call of the model, was captured.

        Args:
            note: Adds a note to the run, about a capture that fails.
        """
        self._replays.install(note)

    def watch_compiled_calls(self, expects_training: Callable[[int], bool]) -> None:
        """Count calls of compiled functions if they can be steps, until an optimizer's step is seen.

        Args:
            expects_training: Returns whether an optimizer exists that can train a module, or any (-1); finds modules
                and optimizers that are not known yet.
        """
        self._expects_training = expects_training
        if self.module_name is None and self.counts_calls:
            self._compiled_calls.install()

    def see_no_more_calls(self) -> None:
        """Count no more calls from now on, of compiled functions either: nothing observes them any more."""
        self._misses_calls = self._misses_calls or self.counts_calls
        self._compiled_calls.remove()

    @property
    def failed_in_optimizer(self) -> bool:
        """Return whether a step of an optimizer began and did not end, as one that raises."""
        return any(count > 0 for count in list(self._begun.values()))

    @property
    def has_seen_all(self) -> bool:
        """Return whether everything was seen until now that can be a step."""
        return self._is_counting and not self._misses_calls

    def remove(self) -> None:
        """Remove the hooks. A hook that cannot be removed yet becomes a no-op, and a second call removes it."""
        self._is_counting = False
        self._made.remove()
        self._replays.remove()
        self._compiled_calls.remove()
        for hook in list(self._hooks):
            hook.remove()
            if hook.has_left:
                self._hooks.remove(hook)

    def restart_clock(self) -> None:
        """Start the current step now, without gpuledger's own pause. The pause is inside a step that is under way."""
        if not self.is_under_way:
            self.started_ns = time.time_ns()

    @property
    def counts_calls(self) -> bool:
        """Return whether calls of modules can be steps."""
        if self._step_on == AUTO:
            return not (self._marked or self.trained)
        return self._step_on == MODULE or self.module_name is not None

    @property
    def followed_id(self) -> int:
        """Return the id of the module with the calls that are steps; -1 if none was called."""
        return self._followed.module_id

    @property
    def has_called(self) -> bool:
        """Return whether a module was called that could be the one with the calls that are steps."""
        return self._followed.module_id >= 0

    def expect_marks(self) -> None:
        """Count only marked steps from now on: the program has announced that it marks them."""
        self._marked = self._marked or self._step_on == AUTO

    def mark(self) -> None:
        """End a step that the program marks. From now on, only marked steps count.

        The first mark replaces the step that was counted automatically. Marks are ignored if the user has selected
        something else as a step.
        """
        if self._step_on not in (AUTO, MARK):
            return
        counted = self.seen and not self._marked
        self._marked = True
        self._held.release()
        if not counted:
            self._end("marked")

    def call_began(self, module_id: int, expects_training: Callable[[], bool]) -> None:
        """Record the entry of an outermost module.

        Everything since its previous call was a step, unless an optimizer follows. The first step begins with the first
        call: what is before makes the model.
        """
        self._replays.module_called(module_id)
        if self.module_name is None and self.counts_calls and not self._compiled.updates:
            if not self.seen and self._step_on == AUTO and self._constructors.begins(module_id):
                return
            self._compiled.module_called()
            before = self._followed.module_id
            if not self.seen and self._step_on == AUTO and self._followed.gives_way_to_larger(module_id):
                self._held.release()
            if self._followed.begins(module_id):
                if before != module_id:
                    self._call_under_way, self._version = -1, None
                self._call_begins(module_id, expects_training)

    def call_ended(
        self, module_id: int, expects_training: Callable[[], bool], replayed: ReplayedGraph | None = None
    ) -> None:
        """Record the exit of an outermost module.

        The call was a step, unless the model is trained or backward can follow.

        Args:
            module_id: The module.
            expects_training: Returns whether an optimizer exists that can train it.
            replayed: The graph in which the call was captured, if this was a replay.
        """
        is_followed = not self._constructors.ends(module_id) and self._followed.module_id in (-1, module_id)
        if self.module_name is None and self.counts_calls and is_followed and not self._compiled.updates:
            self._followed.begins(module_id)
            self._call_ends(module_id, expects_training, replayed)

    def named_call_began(self) -> None:
        """Record the entry of a module with the name that the user has given."""
        self._call_begins(NAMED, _never)

    def named_call_ended(self) -> None:
        """Record the exit of a module with the name that the user has given."""
        self._call_ends(NAMED, _never)

    def end_with_program(self, expects_training: Callable[[], bool]) -> None:
        """Count the steps that end with the program.

        A call with gradients ends when the next one begins, and the last one with the program. Calls that were held
        back are steps if no training has followed.
        """
        if self._is_counting and self.counts_calls:
            self._count_held()
            was_step = self._call_under_way >= 0 and (self._was_updated() or not self._waits_for(expects_training))
            if self._compiled.is_under_way:
                was_step = self._compiled.ends(waits=self._waits_for(expects_training)) or was_step
            if was_step:
                self.seen += 1
                self._held.counted(self.seen, self.started_ns, time.time_ns())
            self._call_under_way = -1

    def _prepares(self) -> None:
        """Record that the current step prepares others."""
        self.prepared = self.seen + 1

    def _replay_began(self, captured: ReplayedGraph) -> None:
        """Record the beginning of a replay outside all calls: it is like a call of a module that was captured."""
        module_id = self._followed_in(captured)
        self.call_began(module_id, partial(self._expects_training, module_id))

    def _replay_ended(self, captured: ReplayedGraph) -> None:
        module_id = self._followed_in(captured)
        self.call_ended(module_id, partial(self._expects_training, module_id), captured)

    def _followed_in(self, captured: ReplayedGraph) -> int:
        followed = self._followed.module_id
        return followed if followed in captured.module_ids else captured.module_ids[0]

    def _compiled_call_began(self, key: int) -> None:
        """Record the beginning of a call of a compiled function, outside all modules."""
        is_after_module = self._call_under_way >= 0
        if self.counts_calls and not (is_after_module and self._compiled.is_part(self._followed.has_gradients)):
            waits = self._expects_training(-1) and self._step_on == AUTO
            if self._compiled.begins(key, waits=waits):
                self._call_under_way = -1
                self._held.release()
                self._end(CALL)

    def _all_weights(self) -> tuple[int, int]:
        """Return the number of parameters of modules and optimizers, and a number that changes with every update."""
        count, version = self._weights_version()
        with without_overrides():
            groups = [group for optimizer in self.optimizers for group in parameter_groups(optimizer)]
            versions = [updates_of(weight) for group in groups for weight in group]
        return count + len(versions), version + sum(versions)

    def _call_begins(self, module_id: int, expects_training: Callable[[], bool]) -> None:
        if self._awaits_call and not self.seen:
            self.restart_clock()
        self._awaits_call, used_graph, kind = False, self._call_under_way == module_id, self._kind_under_way
        was_updated = (used_graph or not self.seen) and self._was_updated()  # looks at every weight
        self._call_under_way = -1
        self.calls_with_graph += used_graph
        self.calls_with_update += used_graph and was_updated
        if used_graph and (was_updated or not self._waits_for(expects_training)):
            self._end_call(kind)

    def _call_ends(
        self, module_id: int, expects_training: Callable[[], bool], replayed: ReplayedGraph | None = None
    ) -> None:
        before, fills, kind = self._version, False, CALL if replayed is None else REPLAY
        has_graph = torch.is_grad_enabled() if replayed is None else replayed.has_backward
        if has_graph or not self.seen:
            self._version = self._weights_version()  # a lazy module fills its weights inside its first call
            fills = before is not None and before != self._version
        if has_graph:
            self._call_under_way, self._kind_under_way = module_id, kind
        elif not self._waits_for(expects_training):
            self._end_call(kind, fills=fills)

    def _was_updated(self) -> bool:
        before, self._version = self._version, self._weights_version()
        return before is not None and before[0] == self._version[0] and before != self._version

    def _waits_for(self, expects_training: Callable[[], bool]) -> bool:
        return self._step_on == AUTO and expects_training()

    def _end_call(self, kind: str, *, fills: bool = False) -> None:
        """End a step that is a call, or hold it back. ``fills``: whether the call has given weights their values."""
        if self._step_on == AUTO and not self.seen and self._held.holds(self._followed.awaits_larger, fills=fills):
            now_ns = time.time_ns()
            self._held.add(self.started_ns, now_ns)
            self.started_ns = now_ns
        else:
            self._count_held()
            self._end(kind)

    def _count_held(self) -> None:
        for start_ns, end_ns in self._held.release():
            self.seen += 1
            self._held.counted(self.seen, start_ns, end_ns)

    def _before_step(self, optimizer: Any) -> None:
        if not self.trained:
            self._training_begins()
        self._is_new = optimizer not in self.optimizers
        if self._is_new:
            self.optimizers.add(optimizer)
        self._begun[id(optimizer)] += 1
        self._before(optimizer)

    def _training_begins(self) -> None:
        """From now on, calls of modules are no steps, unless the settings name them."""
        if self._step_on == AUTO and not self._marked:
            self.calls_before_training = self.seen
        self.trained = True
        self._made.remove()
        self._held.release()
        if not self.counts_calls:
            self._compiled_calls.remove()

    def _after_step(self, optimizer: Any) -> None:
        if began_compiled() or not self._begun[id(optimizer)]:  # the latter if the hook before is guarded
            self._before_step(optimizer)
        self._begun[id(optimizer)] -= 1
        self._after(optimizer)
        if self.optimizer.has_stepped(optimizer, self.seen + 1, is_new=self._is_new):
            self._replays.optimizer_stepped()
            self._end_optimizer_step()

    def _end_optimizer_step(self) -> None:
        if not self._marked and self._step_on in (AUTO, OPTIMIZER):
            self._end("optimizer")

    def _end(self, kind: str) -> None:
        self.turns.take(partial(self._end_now, kind))

    def _end_now(self, kind: str) -> None:
        if self._is_counting:  # not if it was removed while this thread waited for its turn
            now_ns = time.time_ns()
            started_ns, self.started_ns = self.started_ns, now_ns
            self.seen += 1
            self._ended(kind, started_ns, now_ns)


def _never(_module_id: int = -1) -> bool:
    return False
