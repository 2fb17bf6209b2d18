"""Set the current module at every allocation inside compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.phases import Phases, ThreadState
from gpuledger.collect.attribution.stacks import StackTable
from gpuledger.collect.attribution.tags import flags_of, module_id_of, suffix
from gpuledger.collect.compiled.compiled_graphs import CompiledGraphs, ObservedFunction

Made = Callable[[Any], None]


class CompiledMemory:
    """Observes generated code while memory is recorded, and sets the token of each line that allocates.

    ``made`` is called with every new buffer, for a recorder that does not see it otherwise; None if it does.
    """

    def __init__(
        self, graphs: CompiledGraphs, phases: Phases, stacks: StackTable, guard: Guard, made: Made | None
    ) -> None:
        self.with_stacks = self.active = False
        self.graphs, self.phases, self.stacks, self.guard = graphs, phases, stacks, guard
        self.made = made

    def install(self) -> None:
        """Observe all generated functions."""
        self.active = True
        sees_buffers = self.made is not None
        self.graphs.observe(
            lambda function: _Observer(self, function), lambda site: site.may_allocate, sees_buffers=sees_buffers
        )

    def remove(self) -> None:
        """Stop observing. Calls in progress end unobserved."""
        self.active = False
        self.graphs.stop_observing()


class _Observer:
    """Observes one generated function. Its tokens are kept by the token around the call."""

    def __init__(self, recording: CompiledMemory, function: ObservedFunction) -> None:
        self._recording = recording
        self._function = function
        self._suffixes: dict[tuple[int, int, bool], list[str]] = {}

    def enter(self) -> _Call | None:
        """Return the object to call back during this call; None if nothing is recorded."""
        recording = self._recording
        try:
            if not recording.active:
                return None
            state = recording.phases.local.state
            base = state.token or recording.phases.prefix
            key = module_id_of(base), flags_of(base), recording.with_stacks
            suffixes = self._suffixes.get(key)
            if suffixes is None:
                recording.graphs.note_called(self._function)
                suffixes = self._suffixes[key] = self._tokens(*key)
            return _Call(recording, state, suffixes)
        except BaseException as error:
            if not recording.guard.absorbs(error):
                raise
            return None

    def _tokens(self, base: int, flags: int, with_stacks: bool) -> list[str]:
        graphs, intern = self._recording.graphs, self._recording.stacks.intern
        return [
            suffix(graphs.resolve(site.main, base), flags, intern(site.main.frames) if with_stacks else -1)
            for site in self._function.sites
        ]


class _Call:
    """One call of a generated function."""

    __slots__ = ("_before", "_recording", "_state", "_suffixes")

    def __init__(self, recording: CompiledMemory, state: ThreadState, suffixes: list[str]) -> None:
        self._recording = recording
        self._state = state
        self._suffixes = suffixes
        self._before = state.token

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
            if recording.active and recording.made is not None:
                recording.made(tensor)
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
        except BaseException as error:
            if not recording.guard.absorbs(error):
                raise
