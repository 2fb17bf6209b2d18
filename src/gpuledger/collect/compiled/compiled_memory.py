"""Set the current module at every allocation inside compiled code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from gpuledger.collect.adapter.compiler.graph_operations import GraphFlow
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.adapter.program_objects import without_overrides
from gpuledger.collect.attribution.phases import Phases, ThreadState
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import flags_of, module_id_of, suffix
from gpuledger.collect.compiled.compiled_graphs import OUTSIDE, CompiledGraphs, ObservedFunction
from gpuledger.model.accounts import Phase

SeesResults = Callable[[Sequence[Any]], None]
"""Is called with what code returns."""
SeesFlow = Callable[[GraphFlow, Mapping[str, Any]], SeesResults | None]


@runtime_checkable
class SeesBuffers(Protocol):
    """A recorder that sees operators, and so neither the buffers of compiled code nor what Dynamo makes for it."""

    def see_made(self, tensor: Any) -> None:
        """Record a new buffer of compiled code."""

    def see_inputs(self, inputs: list[Any]) -> None:
        """Record the tensors that compiled code is called with, if they are unknown."""


class CompiledMemory:
    """Observes generated code while memory is recorded, and sets the token of each line that allocates.

    ``recorder`` is None if it sees all memory itself.
    """

    def __init__(
        self, graphs: CompiledGraphs, phases: Phases, stacks: StackTable, guard: Guard, recorder: SeesBuffers | None
    ) -> None:
        self.with_stacks = self.active = False
        self.graphs, self.phases, self.stacks, self.guard = graphs, phases, stacks, guard
        self.recorder = recorder
        self.look_for_modules: Callable[[], None] = lambda: None
        """Called if code runs outside modules that was compiled for modules which are not registered."""
        self.see_flow: SeesFlow = lambda _, __: None
        """Called with what code computes, and its inputs by their names in its graph."""

    def install(self) -> None:
        """Observe all generated functions."""
        self.active = True
        sees_buffers = self.recorder is not None
        self.graphs.observe(
            lambda function: _Observer(self, function),
            lambda site: site.may_allocate,
            sees_buffers=sees_buffers,
            sees_results=True,
        )

    def remove(self) -> None:
        """Stop observing. Calls in progress end unobserved."""
        self.active = False
        self.graphs.stop_observing()

    def begin(self, phase: Phase) -> Phase | None:
        """Begin the forward of modules, or the optimizer's step, that a compiled function contains.

        Return the phase that goes on afterwards; None if no phase has begun. An optimizer's closure can compute
        modules, too. Gradients are off in generated code, whether the program has turned them off or not.
        """
        phases = self.phases
        before = phases.phase
        if before not in (Phase.SETUP, Phase.BETWEEN, Phase.OPTIMIZER):
            return None
        is_evaluation = phase == Phase.FORWARD and torch.is_inference_mode_enabled()
        phases.change(Phase.EVALUATION if is_evaluation else phase)
        return Phase.OPTIMIZER if before == Phase.OPTIMIZER else Phase.BETWEEN


class _Observer:
    """Observes one generated function. Its tokens are kept by the token around the call."""

    def __init__(self, recording: CompiledMemory, function: ObservedFunction) -> None:
        self._recording = recording
        self._function = function
        self._suffixes: dict[tuple[int, int, bool], list[str]] = {}
        self._contains: Phase | None = None
        """Forward if the function computes modules that nothing has called; that of an optimizer if it is its step."""

    def enter(self, inputs: list[Any]) -> _Call | None:
        """Return the object to call back during this call; None if nothing is recorded."""
        recording = self._recording
        try:
            if not recording.active:
                return None
            if recording.recorder is not None:
                recording.recorder.see_inputs(inputs)
            state = recording.phases.local.state
            base = state.token or recording.phases.prefix
            key = module_id_of(base), flags_of(base), recording.with_stacks
            suffixes = self._suffixes.get(key)
            if suffixes is None:
                recording.graphs.note_called(self._function, sys._getframe())
                suffixes = self._suffixes[key] = self._tokens(*key)
            contains = self._contains if key[0] == OUTSIDE else None
            phase_after = None if contains is None else recording.begin(contains)
            see_results = None
            if self._function.flow.operations and len(inputs) == len(self._function.inputs):
                named = dict(zip(self._function.inputs, inputs, strict=True))
                with without_overrides():
                    see_results = recording.see_flow(self._function.flow, named)
            return _Call(recording, state, suffixes, phase_after, see_results)
        except BaseException as error:
            if not recording.guard.absorbs(error):
                raise
            return None

    def _tokens(self, base: int, flags: int, with_stacks: bool) -> list[str]:
        graphs, intern, sites = self._recording.graphs, self._recording.stacks.intern, self._function.sites
        if base == OUTSIDE and graphs.lacks_modules_of(self._function):
            self._recording.look_for_modules()
        ids = [graphs.resolve(site.main, base) for site in sites]
        if base == OUTSIDE:
            graphs.note_called_inside(ids)
            self._contains = self._phase_of(ids)
        return [
            suffix(module_id, flags, intern(graphs.frames_of(self._function, site.main)) if with_stacks else -1)
            for module_id, site in zip(ids, sites, strict=True)
        ]

    def _phase_of(self, module_ids: list[int]) -> Phase | None:
        if any(module_id != OUTSIDE for module_id in module_ids):
            return Phase.FORWARD
        return Phase.OPTIMIZER if any(site.in_optimizer for site in self._function.sites) else None


class _Call:
    """One call of a generated function."""

    __slots__ = ("_before", "_phase_after", "_recording", "_see_results", "_state", "_suffixes")

    def __init__(
        self,
        recording: CompiledMemory,
        state: ThreadState,
        suffixes: list[str],
        phase_after: Phase | None,
        see_results: SeesResults | None,
    ) -> None:
        self._recording = recording
        self._state = state
        self._suffixes = suffixes
        self._before = state.token
        self._phase_after = phase_after
        self._see_results = see_results

    def at(self, mark: int) -> None:
        """Set the token of the statement that runs next. Hot path."""
        recording = self._recording
        try:
            if recording.active:
                phases, state = recording.phases, self._state
                token = phases.prefix + self._suffixes[mark]
                state.token = token
                phases.set_token(token + state.scope)
        except BaseException as error:
            if not recording.guard.absorbs(error):
                raise

    def made(self, tensor: Any) -> None:
        """Pass on a new buffer."""
        recording = self._recording
        try:
            if recording.active and recording.recorder is not None:
                recording.recorder.see_made(tensor)
        except BaseException as error:
            if not recording.guard.absorbs(error):
                raise

    def returns(self, tensors: tuple[Any, ...]) -> None:
        """Pass on what the function returns."""
        recording = self._recording
        try:
            if recording.active and self._see_results is not None:
                with without_overrides():
                    self._see_results(tensors)
        except BaseException as error:
            if not recording.guard.absorbs(error):
                raise

    def leave(self) -> None:
        """Restore the token."""
        recording = self._recording
        try:
            if recording.active:
                self._state.token = self._before
                recording.phases.set_token(self._before + self._state.scope)
                if self._phase_after is not None:
                    recording.phases.change(self._phase_after)
        except BaseException as error:
            if not recording.guard.absorbs(error):
                raise
