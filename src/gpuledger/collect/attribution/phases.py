"""The current step, phase and visit of the program, and the token that each thread's allocations carry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.node_hooks import NodeHooks
from gpuledger.collect.attribution.tags import TagTable, module_id_of, suffix
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import TagFlag

OUTSIDE = -1

Owner = tuple[int, int]
"""Ids of a module and of the Python stack of its call."""


class ThreadState:
    """State of one thread.

    Numbers are autograd sequence numbers, which identify graph nodes. A piece is the part of a token for a scope.

    Attributes:
        stack: ``[module_id, last_sequence_number, stack_id]`` of each module call in progress, outermost first.
        token: The current token without the scope.
        around: Id of the module whose call began before the recording, while its end was not noticed; OUTSIDE for none.
        claimed: Numbers of the nodes that have a module's hook.
        created: Number of the last node that a module has created before another one was current -> that module.
        node_hooks: The hooks of graphs whose backward has not run yet.
        outermost_end: Number at the end of the last call of an outermost module, at the end of the last ``backward()``,
            or at the start of the recording in its thread; -1 if none of them was seen.
        step_depth: Number of module calls around a training, as of a module with the loop over steps in its forward; 0
            for none. The calls inside these are like outermost ones.
        scope: Piece of the current scope.
        scope_starts: Numbers at which the scope changed, ascending.
        scope_pieces: Pieces of the scopes that begin there.
        scope_changes: Number -> piece of the changes that are not in the two lists yet.
        scope_claimed: Numbers of the nodes with a module's hook that can set the scope, too.
        scoped_nodes: Number -> piece to set before that node runs in backward.
        scopes_before: Stack of pieces to restore inside a backward pass.
        scope_since: Number at the end of the last backward pass.
        scope_shape: Key of the backward pass in progress, by which a later pass is matched.
        scope_awaited: Numbers of the nodes that must run in this pass if its match with an earlier one was right.
    """

    __slots__ = (
        "around",
        "claimed",
        "created",
        "node_hooks",
        "outermost_end",
        "scope",
        "scope_awaited",
        "scope_changes",
        "scope_claimed",
        "scope_pieces",
        "scope_shape",
        "scope_since",
        "scope_starts",
        "scoped_nodes",
        "scopes_before",
        "stack",
        "step_depth",
        "token",
    )

    def __init__(self) -> None:
        self.stack: list[list[int]] = []
        self.token = ""
        self.around = OUTSIDE
        self.claimed: set[int] = set()
        self.created: dict[int, Owner] = {}
        self.node_hooks = NodeHooks()
        self.outermost_end = -1
        self.step_depth = 0
        self.scope = ""
        self.scope_claimed: set[int] = set()
        self.scope_awaited: set[int] = set()
        self.scope_changes: dict[int, str] = {}
        self.scope_since = 0
        self.scope_shape: tuple[Any, ...] = ()
        self.scope_starts: list[int] = []
        self.scope_pieces: list[str] = []
        self.scoped_nodes: dict[int, str] = {}
        self.scopes_before: list[str] = []

    @property
    def innermost(self) -> Owner:
        """Return the innermost module, and the stack of its call."""
        return (self.stack[-1][0], self.stack[-1][2]) if self.stack else (self.around, -1)

    def creates_until(self, number: int) -> None:
        """Record that the innermost module has created the thread's nodes before ``number``, since the last record."""
        if number - 1 not in self.created:
            self.created[number - 1] = self.innermost


class _Threads(threading.local):
    def __init__(self, see: Callable[[ThreadState], None]) -> None:
        self.state = ThreadState()
        see(self.state)


class ModuleContext:
    """Provides the current module. It receives the tokens that a recorder would set on allocations.

    Args:
        registry: Paths of modules.
    """

    def __init__(self, registry: ModuleRegistry) -> None:
        self.token = ""
        self._registry = registry

    def set_token(self, token: str) -> None:
        """Set the current token."""
        self.token = token

    @property
    def current_module_id(self) -> int:
        """Return the id of the current module; -1 outside all modules."""
        return module_id_of(self.token)

    @property
    def current_module_path(self) -> str:
        """Return the path of the current module; ``""`` outside all modules."""
        module_id = self.current_module_id
        return "" if module_id == OUTSIDE else self._registry.path_of(module_id)


class Phases:
    """The current step and phase, and the tokens of all threads.

    A *visit* is one period in one phase of one step. It ends with the phase or the step. ``prefix`` is the part of
    every token that identifies the visit, so a token gives the step and the phase of an allocation.

    Args:
        set_token: Sets the token of the calling thread's next allocations; see :class:`..recorder.Recorder`.
        tags: Assigns ids to tags.
    """

    def __init__(self, set_token: Callable[[str], None], tags: TagTable) -> None:
        self.set_token = set_token
        self.tags = tags
        self.on_thread: Callable[[ThreadState], None] = lambda _state: None
        """Called in each thread, with its new state, when it is first seen. It must not raise."""
        self.local = _Threads(lambda state: self.on_thread(state))
        self.step = 0
        self.phase = Phase.SETUP
        self.prefix = ""
        self.optimizer_depth = 0

    @property
    def threads(self) -> ThreadState:
        """Return the calling thread's state."""
        return self.local.state

    def start(self) -> None:
        """Begin the first visit and set the calling thread's first token."""
        self.prefix = self.tags.begin_visit(self.step, self.phase)
        self.put(self.threads.around)

    def change(self, phase: Phase, *, step: int | None = None) -> None:
        """Begin a visit in ``phase``, and set the calling thread's token in its innermost module, if any."""
        if step is not None:
            self.step = step
        elif phase == self.phase:
            return
        elif not self.step:
            self.step = 1
        self.phase = phase
        self.prefix = self.tags.begin_visit(self.step, phase)
        self.put(self.threads.innermost[0])

    def put(self, module_id: int, flags: int = 0, stack_id: int = -1) -> None:
        """Set the token of the calling thread's next allocations."""
        self.restore(self.prefix + suffix(module_id, flags, stack_id))

    def restore(self, token: str) -> None:
        """Set the calling thread's token, a new or an earlier one. The scope does not change."""
        state = self.local.state
        state.token = token
        self.set_token(token + state.scope)

    def flags_now(self) -> int:
        """Return the flags of a module entered now.

        A module entered in backward is recomputed (activation checkpointing).
        """
        return int(TagFlag.RECOMPUTED) if self.phase == Phase.BACKWARD else 0

    def enter_optimizer(self) -> None:
        """Record the start of an optimizer step."""
        self.optimizer_depth += 1
        self.change(Phase.OPTIMIZER)

    def leave_optimizer(self, back_to: Phase) -> None:
        """Record the end of an optimizer step."""
        self.optimizer_depth = max(self.optimizer_depth - 1, 0)
        self.change(back_to)

    def after_call(self, before: Phase, *, has_graph: bool, is_model: bool) -> None:
        """Record the end of a call of an outermost module.

        A forward goes on until its backward. A call that autograd does not follow has none, such as one of a transform
        of data. In the setup, only the call of a model begins the first step.
        """
        if self.phase == Phase.EVALUATION:
            self.change(Phase.BETWEEN)
        elif self.phase == Phase.FORWARD and not has_graph and before in (Phase.SETUP, Phase.BETWEEN):
            if before == Phase.SETUP and not is_model:
                self.change(before, step=0)
            else:
                self.change(Phase.BETWEEN)

    def after_backward(self, before: Phase, *, whole: bool) -> None:
        """Record the end of a backward pass.

        ``whole`` is False for ``autograd.grad``, after which the forward continues.
        """
        if before == Phase.BACKWARD:
            return
        if self.optimizer_depth:
            self.change(Phase.OPTIMIZER)
        else:
            self.change(Phase.BETWEEN if whole else before)
