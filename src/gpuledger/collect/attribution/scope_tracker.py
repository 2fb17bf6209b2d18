"""Which scope is at work while something records, in forward and in backward.

In forward the program says so. For backward the numbers that autograd gives its nodes are kept beside every change of
scope: when a backward pass begins, its graph is walked once, and wherever the order of execution (descending numbers)
crosses from one scope to another, a hook before the node says so. A node outside every scope goes to the scope that
``backward()`` was called in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.adapter import torch_private
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution import scopes
from gpuledger.collect.attribution.module_registry import SCOPES, ModuleRegistry
from gpuledger.collect.attribution.phases import OUTSIDE, Phases, ThreadState
from gpuledger.collect.attribution.scope_crossings import (
    CHANGES_KEPT,
    Crossings,
    crossings_among,
    keep_changes,
    numbered_nodes,
)
from gpuledger.collect.attribution.tags import scope_piece, suffix
from gpuledger.collect.attribution.task_switches import TaskSwitches
from gpuledger.model.accounts import Phase


def _run_told(
    changed: scopes.Listener, around: scopes.Level, level: scopes.Level, scope: Any, call: Any, args: Any, kwargs: Any
) -> Any:
    """Call a decorated function in its scope, and tell a listener before and after it."""
    changed(level, scope)
    try:
        return call(*args, **kwargs)
    finally:
        scopes.go_back(around)
        scopes.say(around)


class ScopeTracker:
    """Puts the scope at work on each thread's allocations while it is installed.

    Args:
        phases: Where the program is.
        registry: Numbers for names.
        guard: Takes what is raised in our code.
    """

    def __init__(self, phases: Phases, registry: ModuleRegistry, guard: Guard) -> None:
        self.used = False
        """Whether any scope was met."""
        self._phases = phases
        self._registry = registry
        self._guard = guard
        self._active = False
        self._mine = object()
        self._sequence = torch_private.sequence_reader()
        self._pieces = {"": ""}
        self._paths = {"": ""}
        self._hooks: dict[str, Callable[[Any], None]] = {}
        self._crossings = Crossings()
        self._changed = self._make_listener()
        self._run = self._make_runner()
        self._tasks = TaskSwitches(self._changed, guard.absorbs)

    def install(self) -> None:
        """Begin, in the scope that the calling thread is in."""
        self._active = True
        self._phases.local.state.scope_since = self._sequence()
        scopes.listen(self._changed, self._run)
        self._tasks.watch()
        level = scopes.current_level()
        if level.path or self._phases.threads.scope:
            self._changed(level, None)

    def remove(self) -> None:
        """Leave nothing behind."""
        self._active = False
        scopes.stop_listening(self._changed)
        self._hooks.clear()
        self._tasks.stop()

    # -- forward ------------------------------------------------------------------------------------------------

    def _make_listener(self) -> scopes.Listener:
        """Return what tags a thread's next allocations with a scope, and keeps from which node on it holds.

        It has everything it needs at hand: it is the hot path.
        """
        phases, local, set_token = self._phases, self._phases.local, self._phases.set_token
        sequence, outside, backward = self._sequence, suffix(OUTSIDE), Phase.BACKWARD
        mine, find, guard = self._mine, self._find, self._guard

        def changed(level: scopes.Level, scope: scopes.Scope | None) -> None:
            try:
                state = local.state
                if level.noted_by is mine and phases.phase is not backward:
                    piece = level.piece
                else:
                    piece = find(state, level, scope)
                state.scope = piece
                changes = state.scope_changes
                changes[sequence()] = piece
                if len(changes) > CHANGES_KEPT:
                    keep_changes(state)
                token = state.token
                if not token:
                    token = state.token = phases.prefix + outside
                set_token(token + piece)
            except BaseException as error:
                if not guard.absorbs(error):
                    raise

        return changed

    def _make_runner(self) -> scopes.Runner:
        """Return what calls a decorated function and says the same before and after it, in half the time.

        Only where there is nothing to find out, and the thread has a token; else the listener is told.
        """
        local, set_token, sequence = self._phases.local, self._phases.set_token, self._sequence
        phases, backward, mine, tracker = self._phases, Phase.BACKWARD, self._mine, self
        changed, guard, go_back = self._changed, self._guard, scopes.go_back

        def run(around: scopes.Level, level: scopes.Level, scope: Any, call: Any, args: Any, kwargs: Any) -> Any:
            state = local.state
            try:
                is_found = level.noted_by is mine and around.noted_by is mine and phases.phase is not backward
                token = state.token if is_found else ""
            except BaseException as error:
                if not guard.absorbs(error):
                    go_back(around)
                    raise
                return _run_told(changed, around, level, scope, call, args, kwargs)
            if not token:
                return _run_told(changed, around, level, scope, call, args, kwargs)
            try:
                piece = level.piece
                state.scope = piece
                changes = state.scope_changes
                changes[sequence()] = piece
                if len(changes) > CHANGES_KEPT:
                    keep_changes(state)
                set_token(token + piece)
            except BaseException as error:
                if not guard.absorbs(error):
                    go_back(around)
                    raise
            try:
                return call(*args, **kwargs)
            finally:
                go_back(around)
                try:
                    if tracker._active:
                        before = around.piece
                        state.scope = before
                        state.scope_changes[sequence()] = before
                        set_token(state.token + before)
                    else:  # another recording may have begun
                        scopes.say(around)
                except BaseException as error:
                    if not guard.absorbs(error):
                        raise

        return run

    def _find(self, state: ThreadState, level: scopes.Level, scope: scopes.Scope | None) -> str:
        """Return the piece of a scope that is new, or that is entered or left in backward.

        There a forward is computed again, below the scope it was in.
        """
        if self._phases.phase == Phase.BACKWARD:
            if scope is None:
                return state.scopes_before.pop() if state.scopes_before else self._piece(level.path)
            state.scopes_before.append(state.scope)
            if scope.append and state.scope:
                return self._piece(self._recomputed_path(self._paths[state.scope], scope.name))
            return self._piece(level.path)
        level.piece = self._piece(level.path)
        level.noted_by = self._mine
        return level.piece

    def _recomputed_path(self, at_work: str, name: str) -> str:
        """Return the path of a scope entered again; ``at_work`` is that of the node that wants the result.

        The node can be further inside than the function computed again: the path its forward had is taken.
        """
        pieces = at_work.split(scopes.SEPARATOR)
        for count in range(len(pieces), 0, -1):
            path = scopes.SEPARATOR.join((*pieces[:count], name))
            if path in self._pieces:
                return path
        return name if name in self._pieces else f"{at_work}{scopes.SEPARATOR}{name}"

    def _piece(self, path: str) -> str:
        """Return the part of a token that stands for a scope."""
        piece = self._pieces.get(path)
        if piece is None:
            self.used = self._tasks.is_wanted = True
            self._tasks.watch()
            piece = self._pieces[path] = scope_piece(self._registry.name_id(path, SCOPES))
            self._paths[piece] = path
        return piece

    # -- backward -----------------------------------------------------------------------------------------------

    def before_backward(self, nodes: list[Any], *, outermost: bool) -> None:
        """Say where the graph that is about to run goes from one scope to another.

        Args:
            nodes: What backward begins from.
            outermost: Whether no other backward pass is under way.
        """
        if not self.used:
            return
        state = self._phases.local.state
        keep_changes(state)
        if len(state.scoped_nodes) > CHANGES_KEPT:
            state.scoped_nodes.clear()
        crossings = self._crossings.remembered(state, nodes) if outermost else {}
        if crossings:
            state.scoped_nodes.update(crossings)
            return
        found = numbered_nodes(nodes, state.scope_starts[0] if state.scope_starts else 0)
        crossings = dict(crossings_among(found, state))
        for number, piece in crossings.items():
            self._hook_node(state, number, found[number], piece)
        if outermost and found:
            self._crossings.remember(state, crossings, min(found))

    def after_backward(self, *, whole: bool) -> None:
        """The outermost backward pass has ended."""
        if not self.used:
            return
        state = self._phases.local.state
        if state.scope_awaited:
            state.scope_awaited.clear()
            self._crossings.forget(state)
        state.scope_since = self._crossings.next_since(state, self._sequence(), whole=whole)

    def _hook_node(self, state: ThreadState, number: int, node: Any, piece: str) -> None:
        """Have the scope said before a node runs; where it has a module's hook, that one says it as well."""
        if state.scoped_nodes.get(number) == piece:  # of a graph that is kept, and walked again
            return
        state.scoped_nodes[number] = piece
        if number in state.scope_claimed:
            return
        hook = self._hooks.get(piece)
        if hook is None:
            hook = self._hooks[piece] = self._make_hook(piece)
        node.register_prehook(hook)

    def _make_hook(self, piece: str) -> Callable[[Any], None]:
        tracker, phases, local = self, self._phases, self._phases.local
        set_token, outside = phases.set_token, suffix(OUTSIDE)

        def at_work(_gradients: Any) -> None:
            try:
                if tracker._active:
                    state = local.state
                    state.scope = piece
                    if not state.token:
                        state.token = phases.prefix + outside
                    set_token(state.token + piece)
            except BaseException as error:
                if not tracker._guard.absorbs(error):
                    raise

        return at_work
