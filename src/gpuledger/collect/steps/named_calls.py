"""Observe the calls of the modules that the user has named: ``--step-on call:NAME``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter.calls import CallObserver
from gpuledger.collect.adapter.observer import Absorbs
from gpuledger.collect.adapter.program_objects import kind_name
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.launch.settings import AUTO, MARK, MODULE, OPTIMIZER
from gpuledger.collect.steps.step_counter import StepCounter

NEAREST = 3
"""Maximum number of similar names in a message."""
FEWEST_UPDATES, CALLS_PER_UPDATE = 2, 1.5
"""Number of updates of the weights, and of calls for each of them, with which calls are probably not the steps."""


class NamedCalls(CallObserver):
    """Calls ``began()`` and ``ended()`` around the calls of all modules with a path or class, wherever they are called.

    A call inside another one is part of that one.

    Args:
        name: Path of a module below its outermost module, or name of a class.
        registry: Ids and paths of modules.
        outermost: Called with ``(module, args, kwargs)`` before each call of an outermost module.
        began: Called before a call of a named module.
        ended: Called after it.
        absorbs: Handles an exception raised in gpuledger's code.
    """

    def __init__(
        self,
        name: str,
        registry: ModuleRegistry,
        *,
        outermost: Callable[[nn.Module, Any, Any], None],
        began: Callable[[], None],
        ended: Callable[[], None],
        absorbs: Absorbs,
    ) -> None:
        super().__init__(absorbs)
        self._name = name
        self._registry = registry
        self._outermost = outermost
        self._began, self._ended = began, ended
        self._threads = threading.local()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool] | None:
        if not self._is_in() or torch.compiler._is_compiling_flag:
            return None
        local = self._threads
        depth = getattr(local, "depth", 0)
        if not depth:
            local.inside = False
            self._outermost(module, args, kwargs)
        is_step = not local.inside and self._is_named(module)
        if is_step:
            self._began()
            if not self._is_in():  # observers that began() installs see this call, too
                return None
            local.inside = True
        local.depth = depth + 1
        return [is_step]

    def _leave(self, token: list[bool], result: Any) -> None:
        if token:  # once per call, whether it returned or raised
            self._threads.depth -= 1
            if token.pop():
                self._threads.inside = False
                self._ended()

    def _is_named(self, module: nn.Module) -> bool:
        if kind_name(module) == self._name:
            return True
        number = self._registry.module_ids.get(id(module), -1)
        return number >= 0 and self._registry.path_of(number) == self._name


def explain_steps(steps: StepCounter, registry: ModuleRegistry, step_on: str, *, failed: bool = False) -> str:
    """Return a sentence for the user if there is no step, or if the first ones are not of the training; else "".

    Args:
        steps: The step counter.
        registry: The modules that were called.
        step_on: What ends a step.
        failed: Whether the program ended with an exception.
    """
    if steps.calls_before_training:
        first, last = "Step 1 is a call", f"Steps 1 to {steps.calls_before_training} are calls"
        return (
            f"{first if steps.calls_before_training == 1 else last} of a module before the training. Use "
            f"--step-on {OPTIMIZER} to count only steps of the optimizer."
        )
    if steps.seen and steps.counts_calls and step_on == AUTO and _accumulates(steps):
        return (
            f"Each call of the model is a step, but its weights changed after {steps.calls_with_update:,} of "
            f"{steps.calls_with_graph:,} calls only. Call gpuledger.step() after each change to make these the steps."
        )
    if steps.seen or (step_on == AUTO and not steps.has_called):
        return ""
    if steps.module_name is not None:
        return _why_never_called(steps.module_name, registry)
    if step_on == MARK:
        return "No step was counted: the program did not call gpuledger.step()."
    if step_on == MODULE:
        return "No step was counted: no call of a model was seen."
    if failed:
        return "No step was counted: the program failed before the end of its first step."
    if steps.failed_in_optimizer:
        return "No step was counted: the first step of the optimizer failed."
    calls = f" Use --step-on {MODULE} to count calls of the model." if registry.called_roots else ""
    return f"No step was counted: no step of an optimizer was seen.{calls}"


def _accumulates(steps: StepCounter) -> bool:
    """Return whether a program without an optimizer updates its weights again and again, but not after each call."""
    updates = steps.calls_with_update
    return updates >= FEWEST_UPDATES and steps.calls_with_graph >= CALLS_PER_UPDATE * updates


def _why_never_called(name: str, registry: ModuleRegistry) -> str:
    import difflib

    known = sorted({*registry.paths(), *registry.classes.names})
    if name in known:
        return f"No step was counted: no call of {name} was seen."
    near = difflib.get_close_matches(name, known, NEAREST, cutoff=0.4)
    similar = f" Similar names: {', '.join(near)}." if near else ""
    return f"No step was counted: no module has the path or class {name}.{similar}"
