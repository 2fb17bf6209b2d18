"""Modules: who is at work, in forward and in backward.

``nn.Module.__call__`` is wrapped once, for all modules. Hooks on each module would break ``torch.save``,
``torch.jit.script``, ``deepcopy`` and whole-graph compiles, and cost four times as much.

In backward a hook before a graph node names the module that made the node. Three nodes are enough per module call: its
output's (claimed by the innermost module that made it), its inputs' where they were made by the parent's own code, and,
where the parent made nodes that nobody can reach from an input, the first node inside the module, after which the
parent is at work again. Autograd's sequence numbers tell which case holds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuledger.collect import torch_private
from gpuledger.collect.phases import OUTSIDE, Phases
from gpuledger.collect.roster import Roster
from gpuledger.model.accounts import Phase

_FIRST_NODE_SEARCH = 64
"""Nodes looked at for a module's first one; a larger module keeps its own name for what follows it."""


class ModuleTracker:
    """Wraps ``nn.Module.__call__`` and the two entrances to autograd while it is installed.

    Args:
        phases: Where the program is.
        roster: Numbers for modules.
        on_outermost: Called with ``(module_id, args, kwargs)`` when an outermost module is entered in forward.
        on_outermost_end: Called when it is left.
        on_backward_end: Called after each whole backward pass.
        on_error: Called with an exception of ours; must not raise.
    """

    def __init__(
        self,
        phases: Phases,
        roster: Roster,
        *,
        on_outermost: Callable[[int, Any, Any], None],
        on_outermost_end: Callable[[], None],
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
        self._hooks: dict[tuple[int, int], Callable[..., None]] = {}
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    # -- installing ---------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Wrap the entrances."""
        if self.active:
            return
        self.active = True
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

    def _replace(self, place: Any, name: str, ours: Any) -> None:
        self._replaced.append((place, name, ours, getattr(place, name)))
        setattr(place, name, ours)

    # -- forward ------------------------------------------------------------------------------------------------

    def _wrapped_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = torch.compiler.is_compiling
        tracker = self

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for one
            if is_compiling() or not tracker.active:
                return original(module, *args, **kwargs)
            frame = tracker._enter(module, args, kwargs)
            if frame is None:
                return original(module, *args, **kwargs)
            try:
                result = original(module, *args, **kwargs)
            except BaseException:
                tracker._leave(frame, None)
                raise
            tracker._leave(frame, result)
            return result

        return __call__

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Frame | None:
        try:
            threads = self.phases.threads
            stack = threads.stack
            module_id = self.roster.module_ids.get(id(module), -1)
            if module_id < 0:
                module_id = self.roster.enroll(module, inside=stack[-1][0] if stack else -1)
            start = self._sequence()
            outermost = not stack and self.phases.phase != Phase.BACKWARD
            hidden = False
            if outermost:
                self._enter_outermost(module_id, args, kwargs)
            elif stack:
                hidden = self._claim_inputs(stack[-1], args, kwargs, start)
            frame = _Frame(module_id, threads.token, start, outermost, hidden, self._call_stack_id())
            stack.append([module_id, start])
            self.phases.put(module_id, self.phases.flags_now())
        except Exception as error:
            self._on_error(error)
            return None
        return frame

    def _enter_outermost(self, module_id: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.phases.change(Phase.FORWARD if torch.is_grad_enabled() else Phase.EVALUATION)
        self._on_outermost(module_id, args, kwargs)

    def _leave(self, frame: _Frame, result: Any) -> None:
        try:
            threads = self.phases.threads
            if threads.stack:
                threads.stack.pop()
            if not self.active:
                return
            if frame.outermost:
                self.phases.put(OUTSIDE)
            else:
                self.phases.restore(frame.token)
            end = self._sequence()
            if threads.stack:
                threads.stack[-1][1] = end
            if result is not None and end > frame.start and torch.is_grad_enabled():
                self._claim_outputs(frame, result, threads.stack)
            if frame.outermost:
                if self.phases.phase == Phase.EVALUATION:
                    self.phases.change(Phase.BETWEEN)
                self._on_outermost_end()
        except Exception as error:
            self._on_error(error)

    def _call_stack_id(self) -> int:
        return -1 if self.intern_stack is None else self.intern_stack(sys._getframe(3))

    # -- backward -----------------------------------------------------------------------------------------------

    def _claim_inputs(self, parent: list[int], args: tuple[Any, ...], kwargs: dict[str, Any], start: int) -> bool:
        """Claim the nodes of inputs for the parent; return whether it has made a later node that no input leads to."""
        claimed = self.phases.threads.claimed
        reached = start <= parent[1]
        for value in (*args, *kwargs.values()) if kwargs else args:
            node = getattr(value, "grad_fn", None)
            if node is None:
                continue
            number = node._sequence_nr()
            reached = reached or number == start - 1
            if number not in claimed:
                claimed.add(number)
                node.register_prehook(self._hook(parent[0], -1))
        return not reached

    def _claim_outputs(self, frame: _Frame, result: Any, stack: list[list[int]]) -> None:
        claimed = self.phases.threads.claimed
        first = None
        for tensor in _result_tensors(result):
            node = tensor.grad_fn
            if node is None:
                continue
            number = node._sequence_nr()
            if number >= frame.start and number not in claimed:
                claimed.add(number)
                node.register_prehook(self._hook(frame.module_id, frame.stack_id))
            if frame.hidden and first is None:
                first = _first_node(node, frame.start)
        if first is not None and stack:
            back = self._hook(stack[-1][0], -1)
            first.register_hook(lambda _inputs, _outputs: back(None))

    def _hook(self, module_id: int, stack_id: int) -> Callable[[Any], None]:
        key = (module_id, stack_id)
        hook = self._hooks.get(key)
        if hook is None:

            def hook(_gradients: Any) -> None:
                if self.active:
                    self.phases.put(module_id, 0, stack_id)

            self._hooks[key] = hook
        return hook

    def _wrapped_backward(self, original: Callable[..., Any], *, whole: bool) -> Callable[..., Any]:
        tracker = self

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not tracker.active or torch.compiler.is_compiling():
                return original(tensors, *args, **kwargs)
            before, token = tracker._enter_backward(tensors)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                tracker._leave_backward(before, token, whole=whole)

        backward.__name__ = original.__name__
        return backward

    def _enter_backward(self, tensors: Any) -> tuple[Phase, Any]:
        before, token = self.phases.phase, self.phases.threads.token
        try:
            if before != Phase.BACKWARD:
                self.phases.change(Phase.BACKWARD)
                self.phases.put(OUTSIDE, 0, self._call_stack_id())
            claimed = self.phases.threads.claimed
            for tensor in _result_tensors(tensors):
                node = tensor.grad_fn
                if node is not None and node._sequence_nr() not in claimed:
                    claimed.add(node._sequence_nr())
                    node.register_prehook(self._hook(OUTSIDE, self._call_stack_id()))
        except Exception as error:
            self._on_error(error)
        return before, token

    def _leave_backward(self, before: Phase, token: Any, *, whole: bool) -> None:
        try:
            if not self.active:
                return
            if before == Phase.BACKWARD:
                self.phases.restore(token)
                return
            if whole:
                self._on_backward_end()
                self.phases.threads.claimed.clear()
            self.phases.after_backward(before, whole=whole)
        except Exception as error:
            self._on_error(error)


class _Frame:
    """One module call under way."""

    __slots__ = ("hidden", "module_id", "outermost", "stack_id", "start", "token")

    def __init__(self, module_id: int, token: Any, start: int, outermost: bool, hidden: bool, stack_id: int) -> None:
        self.module_id = module_id
        self.token = token
        self.start = start
        self.outermost = outermost
        self.hidden = hidden
        self.stack_id = stack_id


def _result_tensors(result: Any) -> list[torch.Tensor]:
    """Return the tensors in a module's result: itself, or those of a container, two levels deep."""
    if isinstance(result, torch.Tensor):
        return [result]
    found = []
    for value in _values(result):
        if isinstance(value, torch.Tensor):
            found.append(value)
        else:
            found += [inner for inner in _values(value) if isinstance(inner, torch.Tensor)]
    return found


def _values(container: Any) -> Any:
    if isinstance(container, dict):
        return container.values()
    if isinstance(container, (tuple, list)):
        return container
    return ()


def _first_node(node: Any, start: int) -> Any:
    """Return the node with the lowest sequence number not below ``start`` that can be reached from ``node``."""
    best, best_number = None, sys.maxsize
    seen: set[int] = set()
    waiting = [node]
    while waiting and len(seen) < _FIRST_NODE_SEARCH:
        current = waiting.pop()
        number = current._sequence_nr()
        if number < start or number in seen or current.name().startswith("torch::autograd::AccumulateGrad"):
            continue
        seen.add(number)
        if number < best_number:
            best, best_number = current, number
        waiting += [following for following, _ in current.next_functions if following is not None]
    return best if not waiting else None
