"""Track the current module, in forward and in backward.

``nn.Module.__call__`` is observed once for all modules (:mod:`..adapter.instrument`). Hooks on every module would break
``torch.save``, ``torch.jit.script``, ``deepcopy`` and full-graph compilation, and take four times as long.

In backward, hooks on nodes of the graph set the current module (:mod:`.node_claims`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import dynamo, torch_entrances, torch_private
from gpuledger.collect.adapter.guard import Guard, take_out_all
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.program_objects import grad_fn_of, tensors_in, without_overrides
from gpuledger.collect.attribution.communication import CommunicationMarks
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.node_claims import RESULT_LEVELS, NodeClaims
from gpuledger.collect.attribution.phases import OUTSIDE, Phases
from gpuledger.collect.attribution.scope_tracker import ScopeTracker
from gpuledger.collect.attribution.tags import suffix
from gpuledger.collect.attribution.tensor_observations import SeesLeaves
from gpuledger.model.accounts import Phase

_Call = tuple[int, int, str, int, Phase | None, bool, int]
"""A module call in progress.

``(depth, module_id, token before it, sequence number at its start, phase before, hidden, stack_id)``. The phase is None
inside another module, unless a training runs in that one. ``hidden`` means that the parent has created nodes that no
input leads to.
"""

_Backward = tuple[Phase, str, str, bool, bool, Any]
"""A backward pass in progress.

Phase, token and scope to restore, True for ``backward()`` and False for ``grad()``, whether the pass creates a graph,
and the leaves or the inputs.
"""


class ModuleTracker:
    """Observes ``nn.Module.__call__``, ``autograd.backward`` and ``autograd.grad`` while it is installed.

    Args:
        phases: The current step and phase, and the tokens of each thread.
        registry: Ids of modules.
        on_outermost: Called with ``(module_id, args, kwargs)`` when an outermost module is entered in forward, or one
            inside a call in which a backward pass has ended.
        on_outermost_end: Called with ``(module_id, result)`` when it is left. ``result`` is None if it raised.
        on_backward_end: Called after each ``autograd.backward``.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(
        self,
        phases: Phases,
        registry: ModuleRegistry,
        *,
        on_outermost: Callable[[int, Any, Any], None],
        on_outermost_end: Callable[[int, Any], None],
        on_backward_end: Callable[[], None],
        guard: Guard,
    ) -> None:
        self.phases, self.registry = phases, registry
        self.active = False
        self.intern_stack: Callable[[Any], int] | None = None
        self.leaves: SeesLeaves | None = None
        self.on_backward_begin: Callable[[], object] = lambda: None
        self.on_backward_left: Callable[[], object] = lambda: None
        """Called after the end of a pass that is in no other one, with the phase that follows."""
        self._on_outermost, self._on_outermost_end = on_outermost, on_outermost_end
        self._on_backward_end = on_backward_end
        self._guard = guard
        self._sequence = torch_private.sequence_reader()
        self._set_token = phases.set_token
        self._module_ids = registry.module_ids
        self._gone = registry.gone
        self._suffixes: dict[int, str] = {}
        self._observations: list[Observation] = []
        self._scopes = ScopeTracker(phases, registry, guard)
        self._claims = NodeClaims(phases, self._scopes, guard)
        self._communication = CommunicationMarks(phases, guard, registry.register)

    # -- installing ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Observe the three functions.

        Raises:
            CannotInstrumentError: they are not those of a supported torch.
        """
        if self.active:
            return
        self.active = True
        self.phases.threads.outermost_end = self._sequence()
        self._claims.begin()
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
        self._claims.end()
        take_out_all([lambda: remove_all(self._observations), self._scopes.remove, self._communication.remove])

    def look_around(self, *, besides: int = 0) -> None:
        """Find the innermost module whose call this thread is inside. Its begin was not observed, and its end is not.

        Args:
            besides: Number of innermost calls that are observed.
        """
        modules = torch_entrances.modules_in_calls()
        around = OUTSIDE
        for module in modules[: len(modules) - besides]:
            if module is not None and not dynamo.is_compilers_own(module):
                known = self._module_ids.get(id(module), OUTSIDE)
                around = self.registry.register(module) if known == OUTSIDE else known
        self.phases.threads.around = around

    def look_again(self, *, besides: int = 0) -> None:
        """Notice whether the call around this thread has ended, if there was one."""
        state = self.phases.threads
        if state.around != OUTSIDE and not state.stack:
            self.look_around(besides=besides)

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
        self.look_again(besides=1)
        module_id = self._module_ids.get(id(module), -1)
        if module_id < 0:
            if dynamo.is_compilers_own(module):
                return None
            module_id = self.registry.register(module, inside=stack[-1][0] if stack else -1)
        start = self._sequence()
        before: Phase | None = None
        hidden = False
        state.creates_until(start)
        if stack or phases.phase != Phase.BACKWARD:
            hidden = self._claims.claim_inputs(state, args, kwargs, start)
        if depth <= state.step_depth and phases.phase != Phase.BACKWARD:
            state.step_depth, before = depth, phases.phase
            self._enter_outermost(module_id, args, kwargs)
        stack_id = -1 if self.intern_stack is None else self._call_stack_id()
        call = (depth, module_id, state.token, start, before, hidden, stack_id)
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
            depth, module_id, token, start, before, hidden, stack_id = call
            state = self.phases.local.state
            stack = state.stack
            if len(stack) <= depth:
                return
            end = self._sequence()
            state.creates_until(end)
            state.step_depth = min(state.step_depth, depth)
            del stack[depth:]  # also drops entries of inner calls whose end was skipped at the recursion limit
            if not self.active:
                return
            if before is not None:
                self.phases.put(state.innermost[0])
            else:
                state.token = token
                self._set_token(token + state.scope)
            if stack:
                stack[-1][1] = end
            else:
                state.outermost_end = end
            if end > start and result is not None:
                self._claims.claim_outputs(state, result, (start, end), module_id, stack_id, hidden=hidden)
            if before is not None:
                is_model = end > start or self.registry.holds_tensors(module_id)
                self.phases.after_call(before, has_graph=end > start, is_model=is_model)
                self._on_outermost_end(module_id, result)
        except RecursionError:
            self._guard.lacked_room = True
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise

    def _call_stack_id(self) -> int:
        """Return the id of the Python stack below the observed function."""
        return -1 if self.intern_stack is None else self.intern_stack(sys._getframe(3).f_back)

    # -- backward -----------------------------------------------------------------------------------------------

    def _enter_backward(self, tensors: Any, _: Any, __: Any, creates_graph: Any, *___: Any) -> _Backward | None:
        """Record the start of ``torch.autograd.backward``. Return the state to restore."""
        return self._begin_backward(tensors, whole=True, creates_graph=bool(creates_graph))

    def _enter_grad(
        self, outputs: Any, inputs: Any, _: Any, __: Any, creates_graph: Any, *___: Any
    ) -> _Backward | None:
        """Record the start of ``torch.autograd.grad``. Return the state to restore."""
        return self._begin_backward(outputs, whole=False, creates_graph=bool(creates_graph), inputs=inputs)

    def _begin_backward(self, roots: Any, *, whole: bool, creates_graph: bool, inputs: Any = ()) -> _Backward | None:
        if not self.active or torch.compiler._is_compiling_flag:
            return None
        phases = self.phases
        state = phases.threads
        before: _Backward = (phases.phase, state.token, state.scope, whole, creates_graph, inputs)
        try:
            self.look_again()
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
                state.creates_until(self._sequence())
                self._claims.before_backward(state, nodes, self._call_stack_id(), creates_graph=creates_graph)
            self._scopes.before_backward(nodes, outermost=before[0] != Phase.BACKWARD)
            if whole and before[0] != Phase.BACKWARD and self.leaves is not None:
                before = (*before[:5], self.leaves.below(nodes))
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
        phase, token, scope, whole, creates_graph, leaves = before
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
            elif self.leaves is not None:
                self.leaves.differentiated(leaves, result)
            state = self.phases.threads
            self._claims.after_backward(state, result, creates_graph=creates_graph, whole=whole)
            if whole:
                state.step_depth = len(state.stack)
            if whole and not state.stack:
                state.outermost_end = self._sequence()
            self.phases.after_backward(phase, whole=whole)
            self.on_backward_left()
        except RecursionError:  # the program is at the recursion limit; the next phase begins a visit of its own
            self._guard.lacked_room = True
            self.phases.phase = Phase.BETWEEN if whole else phase
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise
