"""Where the program is: step, phase and visit, and the token each thread's allocations carry."""

from __future__ import annotations

import threading
from typing import Any

from gpuledger.collect.recorder import Recorder
from gpuledger.collect.tags import TagBook
from gpuledger.model.accounts import Phase
from gpuledger.model.journal import TagFlag

OUTSIDE = -1


class ThreadState:
    """What one thread is doing.

    ``stack`` holds ``[module_id, last_sequence_number]`` of the modules it is inside, ``claimed`` the sequence numbers
    of the graph nodes that carry a hook already.
    """

    __slots__ = ("claimed", "stack", "token")

    def __init__(self) -> None:
        self.stack: list[list[int]] = []
        self.token: Any = None
        self.claimed: set[int] = set()


class _Threads(threading.local):
    def __init__(self) -> None:
        self.state = ThreadState()


class Phases:
    """The one answer to "what is going on", and the cache of tokens that goes with it.

    A *visit* is one stay in one phase. Tokens are made when first needed and forgotten when the visit ends, so that a
    tag always tells the step and the visit it was made in.
    """

    def __init__(self, recorder: Recorder, tags: TagBook) -> None:
        self.recorder = recorder
        self.tags = tags
        self.local = _Threads()
        self.step = 0
        self.phase = Phase.SETUP
        self.visit = 0
        self.optimizer_depth = 0
        self.tokens: dict[int, Any] = {}
        """Tokens of this visit by module, for the plain case: no flags, no stack. Read by the tracker's hot path."""
        self._other_tokens: dict[tuple[int, int, int], Any] = {}

    @property
    def threads(self) -> ThreadState:
        """Return the calling thread's state."""
        return self.local.state

    def start(self) -> None:
        """Give the calling thread its first token."""
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
        self.visit += 1
        self.tokens.clear()
        self._other_tokens.clear()
        stack = self.threads.stack
        self.put(stack[-1][0] if stack else OUTSIDE)

    def put(self, module_id: int, flags: int = 0, stack_id: int = -1) -> None:
        """Tag the calling thread's next allocations."""
        token = self.token_for(module_id, flags, stack_id)
        self.local.state.token = token
        self.recorder.set_token(token)

    def token_for(self, module_id: int, flags: int = 0, stack_id: int = -1) -> Any:
        """Return the token of a module in this visit, made when first asked for."""
        plain = not flags and stack_id < 0
        key = (module_id, flags, stack_id)
        token = self.tokens.get(module_id) if plain else self._other_tokens.get(key)
        if token is None:
            tag_id = self.tags.make(self.step, self.phase, self.visit, module_id, flags=flags, stack_id=stack_id)
            token = self.recorder.make_token(tag_id)
            if plain:
                self.tokens[module_id] = token
            else:
                self._other_tokens[key] = token
        return token

    def restore(self, token: Any) -> None:
        """Put back a token the thread had before."""
        self.local.state.token = token
        self.recorder.set_token(token)

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
