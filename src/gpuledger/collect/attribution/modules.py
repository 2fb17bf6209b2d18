"""Track the current module, in forward and in backward.

``nn.Module.__call__`` is observed once for all modules (:mod:`..adapter.instrument`). Hooks on every module would break
``torch.save``, ``torch.jit.script``, ``deepcopy`` and full-graph compilation, and take four times as long.

In backward, a hook on a graph node sets the current module just before the node runs. At most three kinds of nodes per
module call need a hook:

- the nodes of the module's outputs, hooked by the innermost module that created them;
- the nodes of its inputs, if the parent's own code created them: from there on, the parent's nodes run;
- the first node created inside the module, if the parent created earlier nodes that no input leads to (for example from
a parameter): after it, the parent's nodes run.

Autograd's sequence numbers, which grow with every node that a thread creates, decide which case applies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import torch_entrances, torch_private
from gpuledger.collect.adapter.guard import Guard, take_out_all
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.program_objects import grad_fn_of, is_tensor, tensors_in, without_overrides
from gpuledger.collect.attribution.communication import CommunicationMarks
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.node_hooks import first_node
from gpuledger.collect.attribution.phases import OUTSIDE, Phases, ThreadState
from gpuledger.collect.attribution.scope_tracker import ScopeTracker
from gpuledger.collect.attribution.tags import suffix
from gpuledger.collect.attribution.tensor_observations import SeesLeaves
from gpuledger.model.accounts import Phase

_Call = tuple[int, int, str, int, bool, bool, int]
"""A module call in progress.

``(depth, module_id, token before it, sequence number at its start, outermost, hidden, stack_id)``. ``hidden`` means
that the parent has created nodes that no input leads to.
"""

_Backward = tuple[Phase, str, str, bool, Any]
"""A backward pass in progress.

Phase, token and scope to restore, True for ``backward()`` and False for ``grad()``, and the leaves or the inputs.
"""

RESULT_LEVELS = 2
"""Maximum nesting depth of a module's result that is searched for tensors."""


class ModuleTracker:
    """Observes ``nn.Module.__call__``, ``autograd.backward`` and ``autograd.grad`` while it is installed.

    Args:
        phases: The current step and phase, and the tokens of each thread.
        registry: Ids of modules.
        on_outermost: Called with ``(module_id, args, kwargs)`` when an outermost module is entered in forward.
        on_outermost_end: Called with ``module_id`` when it is left.
        on_backward_end: Called after each ``autograd.backward``.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(
        self,
        phases: Phases,
        registry: ModuleRegistry,
        *,
        on_outermost: Callable[[int, Any, Any], None],
        on_outermost_end: Callable[[int], None],
        on_backward_end: Callable[[], None],
        guard: Guard,
    ) -> None:
        self.phases, self.registry = phases, registry
        self.active = False
        self.intern_stack: Callable[[Any], int] | None = None
        self.leaves: SeesLeaves | None = None
        self.on_backward_begin: Callable[[], object] = lambda: None
        self._on_outermost, self._on_outermost_end = on_outermost, on_outermost_end
        self._on_backward_end = on_backward_end
        self._guard = guard
        self._sequence = torch_private.sequence_reader()
        self._set_token = phases.set_token
        self._module_ids = registry.module_ids
        self._gone = registry.gone
        self._hooks: dict[tuple[int, int], Callable[..., None]] = {}
        self._suffixes: dict[int, str] = {}
        self._observations: list[Observation] = []
        self._scopes = ScopeTracker(phases, registry, guard)
        self._communication = CommunicationMarks(phases, guard)

    # -- installing ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Observe the three functions.

        Raises:
            CannotInstrumentError: they are not those of a supported torch.
        """
        if self.active:
            return
        self.active = True
        self._scopes.install()
        self._communication.install()
        absorbs = self._guard.absorbs
        backward = Observer(self._enter_backward, self._leave_backward, self._fail_backward, absorbs=absorbs)
        grad = Observer(self._enter_grad, self._leave_backward, self._fail_backward, absorbs=absorbs)
        for function, observer in (
            (torch_entrances.module_call(), Observer(self._enter, self._leave, self._fail, absorbs=absorbs)),
            (torch_entrances.backward(), backward),
            (torch_entrances.grad(), grad),
        ):
            self._observations.append(Observation(function, observer))

    def remove(self) -> None:
        """Remove the observers. Calls in progress end unobserved."""
        self.active = False
        self._hooks.clear()
        take_out_all([lambda: remove_all(self._observations), self._scopes.remove, self._communication.remove])

    # -- forward ------------------------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """Record the start of a module call.

        Return the state that :meth:`_leave` needs; None if the call is not recorded.

        Hot path: it runs for every module call, so state is read from attributes and no guard wraps it.
        """
        if not self.active or torch.compiler._is_compiling_flag:
            return None
        stack = self.phases.local.state.stack
        depth = len(stack)
        try:
            return self._entered(module, args, kwargs, depth)
        except RecursionError:  # the program is at the recursion limit: skip this call
            self._guard.lacked_room = True
            del stack[depth:]
            return None
        except BaseException as error:
            del stack[depth:]
            if not self._guard.absorbs(error):
                raise
            return None

    def _entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> _Call | None:
        phases = self.phases
        state = phases.local.state
        stack = state.stack
        if self._gone:
            self.registry.forget_gone()
        module_id = self._module_ids.get(id(module), -1)
        if module_id < 0:
            if torch_private.is_compilers_own(module):
                return None
            module_id = self.registry.register(module, inside=stack[-1][0] if stack else -1)
        start = self._sequence()
        outermost = hidden = False
        if stack:
            hidden = self._claim_inputs(state, args, kwargs, start)
        elif phases.phase != Phase.BACKWARD:
            outermost = True
            self._enter_outermost(module_id, args, kwargs)
        stack_id = -1 if self.intern_stack is None else self._call_stack_id()
        call = (depth, module_id, state.token, start, outermost, hidden, stack_id)
        stack.append([module_id, start, stack_id])
        if phases.phase == Phase.BACKWARD:
            phases.put(module_id, phases.flags_now())
        else:
            token = phases.prefix + self._suffix_of(module_id)
            state.token = token
            self._set_token(token + state.scope)
        return call

    def _suffix_of(self, module_id: int) -> str:
        known = self._suffixes.get(module_id)
        if known is None:
            known = self._suffixes[module_id] = suffix(module_id)
        return known

    def _enter_outermost(self, module_id: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.phases.change(Phase.FORWARD if torch.is_grad_enabled() else Phase.EVALUATION)
        self._on_outermost(module_id, args, kwargs)

    def _fail(self, call: _Call) -> None:
        """Record that a module call raised."""
        self._leave(call, None)

    def _leave(self, call: _Call, result: Any) -> None:
        """Record the end of a module call. ``result`` is None if it raised."""
        try:
            depth, module_id, token, start, outermost, _, _ = call
            state = self.phases.local.state
            stack = state.stack
            if len(stack) <= depth:
                return
            del stack[depth:]  # also drops entries of inner calls whose end was skipped at the recursion limit
            if not self.active:
                return
            if outermost:
                self.phases.put(OUTSIDE)
            else:
                state.token = token
                self._set_token(token + state.scope)
            end = self._sequence()
            if stack:
                stack[-1][1] = end
            if end > start and result is not None:
                self._claim_outputs(state, call, end, result)
            if outermost:
                if self.phases.phase == Phase.EVALUATION:
                    self.phases.change(Phase.BETWEEN)
                self._on_outermost_end(module_id)
        except RecursionError:
            self._guard.lacked_room = True
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise

    def _call_stack_id(self) -> int:
        """Return the id of the Python stack below the observed function."""
        return -1 if self.intern_stack is None else self.intern_stack(sys._getframe(3).f_back)

    # -- backward -----------------------------------------------------------------------------------------------

    def _claim_inputs(self, state: ThreadState, args: tuple[Any, ...], kwargs: dict[str, Any], start: int) -> bool:
        """Hook the nodes of a call's inputs for the parent.

        Returns:
            Whether the parent has created a node since its last child call that no input leads to.
        """
        parent_id, done, stack_id = state.stack[-1]
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
                    self._claim(state, node, number, parent_id, stack_id)
        return not reached

    def _claim_outputs(self, state: ThreadState, call: _Call, end: int, result: Any) -> None:
        """Hook the nodes of a module's outputs, except those that an inner module has hooked."""
        _, module_id, _, start, _, hidden, stack_id = call
        claimed = state.claimed
        with without_overrides():
            for tensor in tensors_in(result, RESULT_LEVELS):
                node = grad_fn_of(tensor)
                if node is None:
                    continue
                number = node._sequence_nr()
                if number >= start and number not in claimed:
                    self._claim(state, node, number, module_id, stack_id)
                if hidden:
                    hidden = False
                    self._give_back(state, node, start, end)

    def _claim(self, state: ThreadState, node: Any, number: int, module_id: int, stack_id: int) -> None:
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
                self.phases.local.state.scope = piece
                made_in.scope_awaited.discard(number)
            say_module(gradients)
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise

    def _give_back(self, state: ThreadState, node: Any, start: int, end: int) -> None:
        """Set the parent as current module after the module's first node: the nodes that run next are the parent's."""
        first = first_node(node, start, end)
        if first is not None and state.stack:
            parent_id, _, stack_id = state.stack[-1]
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
        phases, set_token, tracker = self.phases, self._set_token, self
        local, mine = phases.local, suffix(module_id, 0, stack_id)

        def at_work(_gradients: Any) -> None:
            try:
                if tracker.active:
                    state = local.state
                    token = phases.prefix + mine
                    state.token = token
                    set_token(token + state.scope)
            except BaseException as error:
                if not tracker._guard.absorbs(error):
                    raise

        return at_work

    def _enter_backward(self, tensors: Any, *_: Any) -> _Backward | None:
        """Record the start of ``torch.autograd.backward``. Return the state to restore."""
        return self._begin_backward(tensors, whole=True)

    def _enter_grad(self, outputs: Any, inputs: Any, *_: Any) -> _Backward | None:
        """Record the start of ``torch.autograd.grad``. Return the state to restore."""
        return self._begin_backward(outputs, whole=False, inputs=inputs)

    def _begin_backward(self, roots: Any, *, whole: bool, inputs: Any = ()) -> _Backward | None:
        if not self.active or torch.compiler._is_compiling_flag:
            return None
        phases = self.phases
        state = phases.threads
        before: _Backward = (phases.phase, state.token, state.scope, whole, inputs)
        try:
            self.on_backward_begin()
            if phases.phase != Phase.BACKWARD:
                phases.change(Phase.BACKWARD)
                phases.put(OUTSIDE, 0, self._call_stack_id())
                phases.tags.number(state.token)  # written even if the calling thread itself allocates nothing
            if torch_private.compiles_backward():
                state.node_hooks.remove()
                return before
            with without_overrides():
                nodes = [node for root in tensors_in(roots, RESULT_LEVELS) if (node := grad_fn_of(root)) is not None]
                for node in nodes:
                    number = node._sequence_nr()
                    if number not in state.claimed:
                        self._claim(state, node, number, OUTSIDE, self._call_stack_id())
            self._scopes.before_backward(nodes, outermost=before[0] != Phase.BACKWARD)
            if whole and before[0] != Phase.BACKWARD and self.leaves is not None:
                before = (*before[:4], self.leaves.below(nodes))
        except RecursionError:  # the program is at the recursion limit; the end of the call restores the phase
            self._guard.lacked_room = True
        except BaseException as error:
            if not self._guard.absorbs(error):
                phases.phase = before[0]
                raise
            return None
        return before

    def _fail_backward(self, before: _Backward) -> None:
        """Record that a backward pass raised."""
        self._leave_backward(before, None)

    def _leave_backward(self, before: _Backward, result: Any) -> None:
        """Record the end of a backward pass."""
        phase, token, scope, whole, leaves = before
        try:
            self.phases.threads.scope = scope
            if not self.active:
                return
            if phase == Phase.BACKWARD:
                self.phases.restore(token)
                return
            self._scopes.after_backward(whole=whole)
            if whole:
                self._on_backward_end()
                if self.leaves is not None:
                    self.leaves.backward_ended(leaves)
                self.phases.threads.claimed.clear()
                self.phases.threads.node_hooks.forget()
                self.phases.threads.scope_claimed.clear()
            elif self.leaves is not None:
                self.leaves.differentiated(leaves, result)
            self.phases.after_backward(phase, whole=whole)
        except RecursionError:  # the program is at the recursion limit; the next phase begins a visit of its own
            self._guard.lacked_room = True
            self.phases.phase = Phase.BETWEEN if whole else phase
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise
