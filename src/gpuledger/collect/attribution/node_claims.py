"""The nodes of autograd's graphs that set the current module, and the current scope, in backward.

A hook on a node sets the current module just before the node runs. At most three kinds of nodes per module call need a
hook:

- the nodes of the module's outputs, hooked by the innermost module that created them;
- the nodes of its inputs, if the parent's own code created them: from there on, the parent's nodes run;
- the first node created inside the module, if the parent created earlier nodes that no input leads to (for example from
a parameter): after it, the parent's nodes run. Outside of all calls, the parent is the program.

Autograd's sequence numbers, which grow with every node that a thread creates, decide which case applies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.program_objects import grad_fn_of, is_tensor, tensors_in, without_overrides
from gpuledger.collect.attribution.backward_nodes import BackwardNodes
from gpuledger.collect.attribution.node_hooks import first_node
from gpuledger.collect.attribution.phases import OUTSIDE, Phases, ThreadState
from gpuledger.collect.attribution.scope_tracker import ScopeTracker
from gpuledger.collect.attribution.tags import suffix

RESULT_LEVELS = 2
"""Maximum nesting depth of a module's result that is searched for tensors."""


class NodeClaims:
    """Hooks the nodes that set a module in backward.

    Args:
        phases: The current step and phase, and the tokens of each thread.
        scopes: Says whether the program has scopes, which a hook sets, too.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, phases: Phases, scopes: ScopeTracker, guard: Guard) -> None:
        self._phases, self._scopes, self._guard = phases, scopes, guard
        self._set_token = phases.set_token
        self._made_in_backward = BackwardNodes()
        self._active = False
        self._hooks: dict[tuple[int, int], Callable[..., None]] = {}

    def begin(self) -> None:
        """Let hooks set the current module."""
        self._active = True

    def end(self) -> None:
        """Let hooks do nothing: they stay on the nodes of graphs that did not run yet."""
        self._active = False
        self._hooks.clear()

    def claim_inputs(self, state: ThreadState, args: tuple[Any, ...], kwargs: dict[str, Any], start: int) -> bool:
        """Hook the nodes of a call's inputs for the parent, or for no module if the call is in none.

        Returns:
            Whether the parent has created a node since its last child call that no input leads to.
        """
        parent_id, done, stack_id = state.stack[-1] if state.stack else (OUTSIDE, state.outermost_end, -1)
        if done < 0:  # the first call that is seen: what the program has created before is not known
            done = start
        claimed = state.claimed
        reached = start <= done
        with without_overrides():
            for value in (*args, *kwargs.values()) if kwargs else args:
                node = grad_fn_of(value) if is_tensor(value) else None
                if node is None:
                    continue
                number = node._sequence_nr()
                if number == start - 1:
                    reached = True
                if number not in claimed:
                    self.claim(state, node, number, parent_id, stack_id)
        return not reached

    def claim_outputs(
        self, state: ThreadState, result: Any, numbers: tuple[int, int], module_id: int, stack_id: int, *, hidden: bool
    ) -> None:
        """Hook the nodes of a module's outputs, except those that an inner module has hooked.

        Args:
            state: State of the thread that has called the module.
            result: What the call has returned.
            numbers: The sequence numbers at the start and at the end of the call.
            module_id: The module.
            stack_id: The Python stack of the call.
            hidden: What :meth:`claim_inputs` has returned.
        """
        start, end = numbers
        claimed = state.claimed
        with without_overrides():
            for tensor in tensors_in(result, RESULT_LEVELS):
                node = grad_fn_of(tensor)
                if node is None:
                    continue
                number = node._sequence_nr()
                if number >= start and number not in claimed:
                    self.claim(state, node, number, module_id, stack_id)
                if hidden:
                    hidden = False
                    self._give_back(state, node, start, end)

    def before_backward(self, state: ThreadState, roots: list[Any], stack_id: int, *, creates_graph: bool) -> None:
        """Hook the nodes of a graph that is about to run: its roots, for no module, and what backward has created."""
        for node in roots:
            number = node._sequence_nr()
            if number not in state.claimed:
                self.claim(state, node, number, OUTSIDE, stack_id)
        for node, owner in self._made_in_backward.before_pass(state, roots, creates_graph=creates_graph):
            state.node_hooks.add_before(node, self._hook(*owner))

    def after_backward(self, state: ThreadState, result: Any, *, creates_graph: bool, whole: bool) -> None:
        """Record the end of a backward pass that is in no other one.

        Args:
            state: State of the calling thread.
            result: What ``autograd.grad`` has returned; None if it raised.
            creates_graph: Whether the pass has created nodes itself.
            whole: False for ``autograd.grad``.
        """
        with without_overrides():
            self._made_in_backward.after_pass(result, creates_graph=creates_graph, whole=whole)
        if whole:
            state.claimed.clear()
            state.created.clear()
            state.node_hooks.forget()
            state.scope_claimed.clear()

    def claim(self, state: ThreadState, node: Any, number: int, module_id: int, stack_id: int) -> None:
        """Hook a node so that its module, and its scope if there are scopes, are set before it runs.

        One hook sets both, because registering a hook is the slowest part.
        """
        state.claimed.add(number)
        hook = self._hook(module_id, stack_id)
        if self._scopes.used:
            state.scope_claimed.add(number)
            hook = partial(self._say_scope, state, number, hook)
        state.node_hooks.add_before(node, hook)

    def _say_scope(self, made_in: ThreadState, number: int, say_module: Callable[[Any], None], gradients: Any) -> None:
        """Set the scope that was found for a node on the thread that runs it, then its module."""
        try:
            piece = made_in.scoped_nodes.get(number)
            if piece is not None:
                self._phases.local.state.scope = piece
                made_in.scope_awaited.discard(number)
            say_module(gradients)
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise

    def _give_back(self, state: ThreadState, node: Any, start: int, end: int) -> None:
        """Set the parent as current module after the module's first node: the nodes that run next are the parent's."""
        first = first_node(node, start, end, outermost=not state.stack)
        if first is not None:
            parent_id, _, stack_id = state.stack[-1] if state.stack else (OUTSIDE, 0, -1)
            back = self._hook(parent_id, stack_id)
            state.node_hooks.add_after(first, lambda _inputs, _outputs: back(None))

    def _hook(self, module_id: int, stack_id: int) -> Callable[[Any], None]:
        """Return the hook that sets a module's token on the thread that runs its backward.

        Cached per module and stack.
        """
        key = (module_id, stack_id)
        hook = self._hooks.get(key)
        if hook is None:
            hook = self._hooks[key] = self._make_hook(module_id, stack_id)
        return hook

    def _make_hook(self, module_id: int, stack_id: int) -> Callable[[Any], None]:
        phases, set_token, claims = self._phases, self._set_token, self
        local, mine = phases.local, suffix(module_id, 0, stack_id)
        runs, owner = self._made_in_backward.runs, (module_id, stack_id)

        def at_work(_gradients: Any) -> None:
            try:
                if claims._active:
                    state = local.state
                    token = phases.prefix + mine
                    state.token = token
                    set_token(token + state.scope)
                    runs(owner)
            except BaseException as error:
                if not claims._guard.absorbs(error):
                    raise

        return at_work
