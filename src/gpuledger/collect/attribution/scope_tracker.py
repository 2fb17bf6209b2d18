"""Track the current scope while recording, in forward and in backward.

In forward, the program enters and leaves scopes itself. For backward, every scope change is stored with the current
autograd sequence number. Autograd runs nodes in descending order of these numbers. So when a backward pass begins, its
graph is walked once, and a hook is registered on each node at which the scope changes. A node outside all scopes gets
the scope in which ``backward()`` was called.
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
    """Call a decorated function in its scope, and call a listener before and after it."""
    changed(level, scope)
    try:
        return call(*args, **kwargs)
    finally:
        scopes.go_back(around)
        scopes.say(around)


class ScopeTracker:
    """Sets the current scope on each thread's allocations while it is installed.

    Args:
        phases: The current step and phase, and the tokens of each thread.
        registry: Ids of names.
        guard: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, phases: Phases, registry: ModuleRegistry, guard: Guard) -> None:
        self.used = False
        """Whether the program has entered a scope."""
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
        """Start tracking, from the scope that each thread has entered before."""
        self._active = True
        self._phases.on_thread = self._see_thread
        scopes.listen(self._changed, self._run)
        self._tasks.is_wanted = scopes.were_entered()
        self._tasks.watch()
        state = self._phases.threads
        state.scope_since = self._sequence()
        level = scopes.current_level()
        if level.path or state.scope:
            self._changed(level, None)

    def remove(self) -> None:
        """Stop tracking and remove all listeners."""
        self._active = False
        self._phases.on_thread = lambda _state: None
        scopes.stop_listening(self._changed)
        self._hooks.clear()
        self._tasks.stop()

    def _see_thread(self, state: ThreadState) -> None:
        """Begin with the current scope of the calling thread, which is seen for the first time."""
        try:
            state.scope_since = self._sequence()
            self._begin_in(state, scopes.current_level())
        except RecursionError:  # the program is at the recursion limit
            self._guard.lacked_room = True
        except BaseException as error:
            if not self._guard.absorbs(error):
                raise

    def _begin_in(self, state: ThreadState, level: scopes.Level | None) -> None:
        """Set the scope of a thread that entered it before the thread was seen."""
        state.scope = self._piece("" if level is None else level.path)
        if state.scope:
            state.scope_changes[state.scope_since] = state.scope

    # -- forward ------------------------------------------------------------------------------------------------

    def _make_listener(self) -> scopes.Listener:
        """Return the listener that sets the scope of a thread's next allocations and stores where the scope changed.

        The place of a change is autograd's next sequence number. Hot path: everything that it needs is a local variable
        of the closure.
        """
        phases, local, set_token = self._phases, self._phases.local, self._phases.set_token
        sequence, outside, backward = self._sequence, suffix(OUTSIDE), Phase.BACKWARD
        mine, find, guard, begin_in = self._mine, self._find, self._guard, self._begin_in

        def changed(level: scopes.Level, scope: scopes.Scope | None) -> None:
            try:
                state = local.state
                token = state.token
                if not token:
                    token = state.token = phases.prefix + outside
                    begin_in(state, level if scope is None else level.around)
                if level.noted_by is mine and phases.phase is not backward:
                    piece = level.piece
                else:
                    piece = find(state, level, scope)
                state.scope = piece
                changes = state.scope_changes
                if len(changes) > CHANGES_KEPT:
                    keep_changes(state)
                changes[sequence()] = piece
                set_token(token + piece)
            except BaseException as error:
                if not guard.absorbs(error):
                    raise

        return changed

    def _make_runner(self) -> scopes.Runner:
        """Return the function that calls a decorated function and records the scope before and after it.

        It takes half the time of the listener, but handles only the common case: the scope is known and the thread has
        a token. Otherwise it calls the listener.
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
                    else:  # another recording can have begun
                        scopes.say(around)
                except BaseException as error:
                    if not guard.absorbs(error):
                        raise

        return run

    def _find(self, state: ThreadState, level: scopes.Level, scope: scopes.Scope | None) -> str:
        """Return the piece of a scope that is new, or that is entered or left in backward.

        A scope entered in backward belongs to a recomputed forward. It gets the path that it had in that forward.
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
        """Return the path of a scope that is entered again in a recomputation.

        ``at_work`` is the scope of the requesting node.

        That node can be in a scope nested inside the recomputed function. So the path that the forward had is used.
        """
        pieces = at_work.split(scopes.SEPARATOR)
        for count in range(len(pieces), 0, -1):
            path = scopes.SEPARATOR.join((*pieces[:count], name))
            if path in self._pieces:
                return path
        return name if name in self._pieces else f"{at_work}{scopes.SEPARATOR}{name}"

    def _piece(self, path: str) -> str:
        """Return the part of a token that identifies a scope."""
        piece = self._pieces.get(path)
        if piece is None:
            self.used = self._tasks.is_wanted = True
            self._tasks.watch()
            piece = self._pieces[path] = scope_piece(self._registry.name_id(path, SCOPES))
            self._paths[piece] = path
        return piece

    # -- backward -----------------------------------------------------------------------------------------------

    def before_backward(self, nodes: list[Any], *, outermost: bool) -> None:
        """Register hooks at the nodes where the scope changes in the graph that is about to run.

        Args:
            nodes: The root nodes of the backward pass.
            outermost: Whether no other backward pass is in progress.
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
        """Record the end of the outermost backward pass."""
        if not self.used:
            return
        state = self._phases.local.state
        if state.scope_awaited:
            state.scope_awaited.clear()
            self._crossings.forget(state)
        state.scope_since = self._crossings.next_since(state, self._sequence(), whole=whole)

    def _hook_node(self, state: ThreadState, number: int, node: Any, piece: str) -> None:
        """Set the scope before a node runs. If the node has a module's hook, that hook sets the scope as well."""
        if state.scoped_nodes.get(number) == piece:  # a retained graph that was walked before
            return
        state.scoped_nodes[number] = piece
        if number in state.scope_claimed:
            return
        hook = self._hooks.get(piece)
        if hook is None:
            hook = self._hooks[piece] = self._make_hook(piece)
        state.node_hooks.add_before(node, hook)

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
