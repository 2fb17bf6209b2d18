"""Modules: who is at work, in forward and in backward.

``nn.Module.__call__`` is wrapped once, for all modules. Hooks on each module would break ``torch.save``,
``torch.jit.script``, ``deepcopy`` and whole-graph compiles, and cost four times as much.

In backward a hook before a graph node names the module that made the node. Three nodes are enough per module call: its
output's (claimed by the innermost module that made it), its inputs' where they were made by the parent's own code, and,
where the parent made nodes that nobody can reach from an input, the first node inside the module, after which the
parent is at work again. Autograd's sequence numbers tell which case holds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpuledger.collect import torch_private
from gpuledger.collect.communication import CommunicationMarks
from gpuledger.collect.guard import forget_frames
from gpuledger.collect.phases import OUTSIDE, Phases, ThreadState
from gpuledger.collect.roster import Roster
from gpuledger.collect.scope_tracker import ScopeTracker
from gpuledger.collect.tags import suffix
from gpuledger.model.accounts import Phase

_Frame = tuple[int, str, int, bool, bool, int]
"""One module call under way: module, token before it, sequence number at its start, outermost, hidden, stack."""

_FIRST_NODE_SEARCH = 64
"""Nodes looked at for a module's first one; a larger module keeps its own name for what follows it."""


class ModuleTracker:
    """Wraps ``nn.Module.__call__`` and the two entrances to autograd while it is installed.

    Args:
        phases: Where the program is.
        roster: Numbers for modules.
        on_outermost: Called with ``(module_id, args, kwargs)`` when an outermost module is entered in forward.
        on_outermost_end: Called with ``module_id`` when it is left.
        on_backward_end: Called after each whole backward pass.
        on_error: Called with an exception of ours; must not raise.
    """

    def __init__(
        self,
        phases: Phases,
        roster: Roster,
        *,
        on_outermost: Callable[[int, Any, Any], None],
        on_outermost_end: Callable[[int], None],
        on_backward_end: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.phases = phases
        self.roster = roster
        self.active = False
        self.intern_stack: Callable[[Any], int] | None = None
        self._on_outermost = on_outermost
        self._on_outermost_end = on_outermost_end
        self._on_backward_end = on_backward_end
        self._on_error = on_error
        self._sequence = torch_private.sequence_reader()
        self._set_token = phases.recorder.set_token
        self._module_ids = roster.module_ids
        self._hooks: dict[tuple[int, int], Callable[..., None]] = {}
        self._suffixes: dict[int, str] = {}
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._scopes = ScopeTracker(phases, roster, on_error)
        self._communication = CommunicationMarks(phases)

    # -- installing ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Wrap the entrances."""
        if self.active:
            return
        self.active = True
        self._scopes.install()
        self._communication.install()
        self._replace(nn.Module, "__call__", self._wrapped_call(nn.Module.__call__))
        self._replace(torch.autograd, "backward", self._wrapped_backward(torch.autograd.backward, whole=True))
        self._replace(torch.autograd, "grad", self._wrapped_backward(torch.autograd.grad, whole=False))

    def remove(self) -> None:
        """Take the wrappers out; one that somebody else has wrapped in turn stays, and does nothing any more."""
        self.active = False
        for place, name, ours, theirs in self._replaced:
            if getattr(place, name) is ours:
                setattr(place, name, theirs)
        self._replaced.clear()
        self._hooks.clear()
        self._scopes.remove()
        self._communication.remove()

    def _replace(self, place: Any, name: str, ours: Any) -> None:
        self._replaced.append((place, name, ours, getattr(place, name)))
        setattr(place, name, ours)

    # -- forward ------------------------------------------------------------------------------------------------

    def _wrapped_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what stands in for ``nn.Module.__call__``. Everything it needs is at hand: it is the hot path.

        Its first parameter is called as in the original: torch's profiler reads it from the frame, by name.
        """
        is_compiling = torch.compiler.is_compiling
        enter, leave = self._enter, self._leave
        tracker = self

        @functools.wraps(original)
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for one
            if is_compiling() or not tracker.active:
                return original(self, *args, **kwargs)
            frame = enter(self, args, kwargs)
            if frame is None:
                return original(self, *args, **kwargs)
            try:
                result = original(self, *args, **kwargs)
            except BaseException as error:
                leave(frame, None)
                forget_frames(error)
                raise
            leave(frame, result)
            return result

        return __call__

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Frame | None:
        """Note that a module begins; return what :meth:`_leave` needs, None after an error of ours."""
        try:
            phases = self.phases
            state = phases.local.state
            stack = state.stack
            module_id = self._module_ids.get(id(module), -1)
            if module_id < 0:
                module_id = self.roster.enroll(module, inside=stack[-1][0] if stack else -1)
            start = self._sequence()
            outermost = hidden = False
            if stack:
                hidden = self._claim_inputs(state, args, kwargs, start)
            elif phases.phase != Phase.BACKWARD:
                outermost = True
                self._enter_outermost(module_id, args, kwargs)
            stack_id = -1 if self.intern_stack is None else self._call_stack_id()
            frame = (module_id, state.token, start, outermost, hidden, stack_id)
            stack.append([module_id, start])
            if phases.phase == Phase.BACKWARD:
                phases.put(module_id, phases.flags_now())
            else:
                token = phases.prefix + self._suffix_of(module_id)
                state.token = token
                self._set_token(token + state.scope)
        except Exception as error:  # the one guard: ours must never reach the program
            self._on_error(error)
            return None
        return frame

    def _suffix_of(self, module_id: int) -> str:
        known = self._suffixes.get(module_id)
        if known is None:
            known = self._suffixes[module_id] = suffix(module_id)
        return known

    def _enter_outermost(self, module_id: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.phases.change(Phase.FORWARD if torch.is_grad_enabled() else Phase.EVALUATION)
        self._on_outermost(module_id, args, kwargs)

    def _leave(self, frame: _Frame, result: Any) -> None:
        """Note that a module has ended; ``result`` is None where it raised."""
        try:
            module_id, token, start, outermost, _, _ = frame
            state = self.phases.local.state
            stack = state.stack
            if stack:
                stack.pop()
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
                self._claim_outputs(state, frame, end, result)
            if outermost:
                if self.phases.phase == Phase.EVALUATION:
                    self.phases.change(Phase.BETWEEN)
                self._on_outermost_end(module_id)
        except Exception as error:  # the one guard
            self._on_error(error)

    def _call_stack_id(self) -> int:
        return -1 if self.intern_stack is None else self.intern_stack(sys._getframe(3))

    # -- backward -----------------------------------------------------------------------------------------------

    def _claim_inputs(self, state: ThreadState, args: tuple[Any, ...], kwargs: dict[str, Any], start: int) -> bool:
        """Claim the nodes of inputs for the parent; return whether it has made a later node that no input leads to."""
        parent_id, done = state.stack[-1]
        claimed = state.claimed
        reached = start <= done
        for value in (*args, *kwargs.values()) if kwargs else args:
            if not isinstance(value, Tensor):
                continue
            node = value.grad_fn
            if node is None:
                continue
            number = node._sequence_nr()
            if number == start - 1:
                reached = True
            if number not in claimed:
                self._claim(state, node, number, parent_id, -1)
        return not reached

    def _claim_outputs(self, state: ThreadState, frame: _Frame, end: int, result: Any) -> None:
        """Claim the nodes of a module's outputs that nobody inside it has claimed."""
        module_id, _, start, _, hidden, stack_id = frame
        claimed = state.claimed
        for tensor in (result,) if isinstance(result, Tensor) else _result_tensors(result):
            node = tensor.grad_fn
            if node is None:
                continue
            number = node._sequence_nr()
            if number >= start and number not in claimed:
                self._claim(state, node, number, module_id, stack_id)
            if hidden:
                hidden = False
                self._give_back(node, start, end, state.stack)

    def _claim(self, state: ThreadState, node: Any, number: int, module_id: int, stack_id: int) -> None:
        """Have a node say its module before it runs, and where there are scopes its own: registering takes longest."""
        state.claimed.add(number)
        hook = self._hook(module_id, stack_id)
        if self._scopes.used:
            state.scope_claimed.add(number)
            hook = partial(self._say_scope, state, number, hook)
        node.register_prehook(hook)

    def _say_scope(self, made_in: ThreadState, number: int, say_module: Callable[[Any], None], gradients: Any) -> None:
        """Put the scope that was found for a node on the thread that runs it, then its module."""
        piece = made_in.scoped_nodes.get(number)
        if piece is not None:
            self.phases.local.state.scope = piece
            made_in.scope_awaited.discard(number)
        say_module(gradients)

    def _give_back(self, node: Any, start: int, end: int, stack: list[list[int]]) -> None:
        """After the module's first node has run backward, the parent is at work: it made the node before that one."""
        first = _first_node(node, start, end)
        if first is not None and stack:
            back = self._hook(stack[-1][0], -1)
            first.register_hook(lambda _inputs, _outputs: back(None))

    def _hook(self, module_id: int, stack_id: int) -> Callable[[Any], None]:
        """Return the hook that puts a module's tag on the thread that runs its backward; one for each module."""
        key = (module_id, stack_id)
        hook = self._hooks.get(key)
        if hook is None:
            hook = self._hooks[key] = self._make_hook(module_id, stack_id)
        return hook

    def _make_hook(self, module_id: int, stack_id: int) -> Callable[[Any], None]:
        phases, set_token, tracker = self.phases, self._set_token, self
        local, mine = phases.local, suffix(module_id, 0, stack_id)

        def at_work(_gradients: Any) -> None:
            if tracker.active:
                state = local.state
                token = phases.prefix + mine
                state.token = token
                set_token(token + state.scope)

        return at_work

    def _wrapped_backward(self, original: Callable[..., Any], *, whole: bool) -> Callable[..., Any]:
        tracker = self

        roots = "tensors" if whole else "outputs"

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not tracker.active:
                return original(*args, **kwargs)
            before = tracker._enter_backward(args[0] if args else kwargs.get(roots))
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                forget_frames(error)
                raise
            finally:
                tracker._leave_backward(*before, whole=whole)

        return backward

    def _enter_backward(self, tensors: Any) -> tuple[Phase, str, str]:
        """Note that backward begins; return phase, token and scope to go back to."""
        state = self.phases.threads
        before, token, scope = self.phases.phase, state.token, state.scope
        try:
            if before != Phase.BACKWARD:
                self.phases.change(Phase.BACKWARD)
                self.phases.put(OUTSIDE, 0, self._call_stack_id())
            roots = _result_tensors(tensors)
            for tensor in roots:
                node = tensor.grad_fn
                if node is not None and node._sequence_nr() not in state.claimed:
                    self._claim(state, node, node._sequence_nr(), OUTSIDE, self._call_stack_id())
            self._scopes.before_backward(roots, outermost=before != Phase.BACKWARD)
        except Exception as error:
            self._on_error(error)
        return before, token, scope

    def _leave_backward(self, before: Phase, token: str, scope: str, *, whole: bool) -> None:
        try:
            self.phases.threads.scope = scope
            if not self.active:
                return
            if before == Phase.BACKWARD:
                self.phases.restore(token)
                return
            self._scopes.after_backward(whole=whole)
            if whole:
                self._on_backward_end()
                self.phases.threads.claimed.clear()
                self.phases.threads.scope_claimed.clear()
            self.phases.after_backward(before, whole=whole)
        except Exception as error:
            self._on_error(error)


def _result_tensors(result: Any) -> list[Tensor]:
    """Return the tensors in a module's result: itself, or those of a container, two levels deep."""
    if isinstance(result, Tensor):
        return [result]
    found = []
    for value in _values(result):
        if isinstance(value, Tensor):
            found.append(value)
        else:
            found += [inner for inner in _values(value) if isinstance(inner, Tensor)]
    return found


def _values(container: Any) -> Any:
    if isinstance(container, dict):
        return container.values()
    if isinstance(container, (tuple, list)):
        return container
    return ()


def _first_node(node: Any, start: int, end: int) -> Any:
    """Return the node with the lowest sequence number from ``start`` up to ``end`` that ``node`` leads to.

    None where the search was given up. Gradient accumulators have the highest number there is, so they are passed by.
    """
    best, best_number = None, end
    seen: set[int] = set()
    waiting = [node]
    while waiting and len(seen) < _FIRST_NODE_SEARCH:
        current = waiting.pop()
        number = current._sequence_nr()
        if not start <= number < end or number in seen:
            continue
        if number == start:
            return current
        seen.add(number)
        if number < best_number:
            best, best_number = current, number
        waiting += [following for following, _ in current.next_functions if following is not None]
    return best if not waiting else None
