"""Where the program is: step, phase and visit, and the token that each thread's allocations carry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.tags import TagTable, module_id_of, suffix
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import TagFlag

OUTSIDE = -1


class ThreadState:
    """What one thread is doing.

    ``stack`` holds ``[module_id, last_sequence_number]`` of the modules it is inside, ``claimed`` the sequence numbers
    of the graph nodes that carry a hook already. ``token`` is without the scope, whose piece is ``scope``;
    ``scope_starts`` and ``scope_pieces`` tell from which node on each scope held, ``scope_changes`` does for those that
    are not in these yet, ``scoped_nodes`` before which nodes
    backward goes to which, ``scope_claimed`` the nodes whose module's hook says so, ``scopes_before`` what to go back
    to inside a backward pass. ``scope_since`` is the number at the end of the last backward pass, ``scope_shape`` what
    the one under way is known again by, ``scope_awaited`` the nodes that have to run in it.
    """

    __slots__ = (
        "claimed",
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
        "token",
    )

    def __init__(self) -> None:
        self.stack: list[list[int]] = []
        self.token = ""
        self.claimed: set[int] = set()
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


class _Threads(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


class ModuleContext:
    """Knows the module at work: it takes the tokens that a recorder would put on allocations.

    Args:
        registry: Paths of modules.
    """

    def __init__(self, registry: ModuleRegistry) -> None:
        self.token = ""
        self._registry = registry

    def set_token(self, token: str) -> None:
        """Take the token of what comes next."""
        self.token = token

    @property
    def current_module_id(self) -> int:
        """Return the number of the module at work; -1 outside of any."""
        return module_id_of(self.token)

    @property
    def current_module_path(self) -> str:
        """Return the path of the module at work; ``""`` outside of any."""
        module_id = self.current_module_id
        return "" if module_id == OUTSIDE else self._registry.path_of(module_id)


class Phases:
    """The one answer to "what is going on".

    A *visit* is one stay in one phase; ``prefix`` is its part of every token. It ends with the phase or the step, so
    that a tag always tells the step and the visit it was made in.

    Args:
        set_token: Puts a token on the calling thread's next allocations; see :class:`..recorder.Recorder`.
        tags: Numbers of tags.
    """

    def __init__(self, set_token: Callable[[str], None], tags: TagTable) -> None:
        self.set_token = set_token
        self.tags = tags
        self.local = _Threads()
        self.step = 0
        self.phase = Phase.SETUP
        self.prefix = ""
        self.optimizer_depth = 0

    @property
    def threads(self) -> ThreadState:
        """Return the calling thread's state."""
        return self.local.state

    def start(self) -> None:
        """Begin the first visit and give the calling thread its first token."""
        self.prefix = self.tags.begin_visit(self.step, self.phase)
        self.put(OUTSIDE)

    def change(self, phase: Phase, *, step: int | None = None) -> None:
        """Enter ``phase`` (a new visit) and tag the calling thread with it, in its innermost module if it is in one."""
        if step is not None:
            self.step = step
        elif phase == self.phase:
            return
        elif not self.step:
            self.step = 1
        self.phase = phase
        self.prefix = self.tags.begin_visit(self.step, phase)
        stack = self.threads.stack
        self.put(stack[-1][0] if stack else OUTSIDE)

    def put(self, module_id: int, flags: int = 0, stack_id: int = -1) -> None:
        """Tag the calling thread's next allocations."""
        self.restore(self.prefix + suffix(module_id, flags, stack_id))

    def restore(self, token: str) -> None:
        """Put a token on the calling thread, a new one or one it had before; the scope stays."""
        state = self.local.state
        state.token = token
        self.set_token(token + state.scope)

    def flags_now(self) -> int:
        """Return the flags of a module entered now: in backward it is being computed again."""
        return int(TagFlag.RECOMPUTED) if self.phase == Phase.BACKWARD else 0

    def enter_optimizer(self) -> None:
        """An optimizer begins its step."""
        self.optimizer_depth += 1
        self.change(Phase.OPTIMIZER)

    def leave_optimizer(self, back_to: Phase) -> None:
        """An optimizer has ended its step."""
        self.optimizer_depth = max(self.optimizer_depth - 1, 0)
        self.change(back_to)

    def after_backward(self, before: Phase, *, whole: bool) -> None:
        """A backward pass has ended; ``whole`` is False for ``autograd.grad``, after which the forward goes on."""
        if before == Phase.BACKWARD:
            return
        if self.optimizer_depth:
            self.change(Phase.OPTIMIZER)
        else:
            self.change(Phase.BETWEEN if whole else before)
