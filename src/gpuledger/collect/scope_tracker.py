"""Which scope is at work while something records, in forward and in backward.

In forward the program says so. For backward the numbers that autograd gives its nodes are kept beside every change of
scope: when a backward pass begins, its graph is walked once, and wherever the order of execution (descending numbers)
crosses from one scope to another, a hook before the node says so. A node outside every scope goes to the scope that
``backward()`` was called in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from gpuledger.collect import scopes, torch_private
from gpuledger.collect.phases import OUTSIDE, Phases, ThreadState
from gpuledger.collect.roster import SCOPES, Roster
from gpuledger.collect.tags import scope_piece, suffix
from gpuledger.collect.task_switches import TaskSwitches
from gpuledger.model.accounts import Phase

CHANGES_KEPT = 1 << 16
"""Changes of scope and hooked nodes remembered per thread: the older half goes where nobody runs backward."""
_NO_NUMBER = 1 << 62
"""Gradient accumulators have the highest number there is: they run as soon as they can, in the scope at work."""


class ScopeTracker:
    """Puts the scope at work on each thread's allocations while it is installed.

    Args:
        phases: Where the program is.
        roster: Numbers for names.
        on_error: Called with an exception of ours; must not raise.
    """

    def __init__(self, phases: Phases, roster: Roster, on_error: Callable[[BaseException], None]) -> None:
        self._phases = phases
        self._roster = roster
        self._on_error = on_error
        self._active = False
        self._used = False
        self._sequence = torch_private.sequence_reader()
        self._pieces = {"": ""}
        self._paths = {"": ""}
        self._hooks: dict[str, Callable[[Any], None]] = {}
        self._tasks = TaskSwitches(self._switched)

    def install(self) -> None:
        """Begin, in the scope that the calling thread is in."""
        self._active = True
        scopes.listen(self)
        self._tasks.watch()
        path = scopes.current_path()
        if path or self._phases.threads.scope:
            self._put(self._phases.threads, self._piece(path))

    def remove(self) -> None:
        """Leave nothing behind."""
        if not self._active:
            return
        self._active = False
        scopes.stop_listening(self)
        self._hooks.clear()
        self._tasks.stop()

    # -- forward ------------------------------------------------------------------------------------------------

    def entered(self, path: str, scope: scopes.Scope) -> None:
        """A scope was entered."""
        try:
            state = self._phases.local.state
            if self._phases.phase == Phase.BACKWARD:  # a forward that is computed again, below the scope it was in
                state.scopes_before.append(state.scope)
                if scope.append and state.scope:
                    path = self._recomputed_path(self._paths[state.scope], scope.name)
            self._put(state, self._pieces.get(path) or self._piece(path))
        except Exception as error:  # the one guard: ours must never reach the program
            self._on_error(error)

    def left(self, path: str) -> None:
        """A scope was left for the one around it."""
        try:
            state = self._phases.local.state
            if self._phases.phase == Phase.BACKWARD and state.scopes_before:
                self._put(state, state.scopes_before.pop())
            else:
                known = self._pieces.get(path)
                self._put(state, self._piece(path) if known is None else known)
        except Exception as error:  # the one guard
            self._on_error(error)

    def _switched(self, path: str) -> None:
        """A task goes on in its own scope, or the loop between two of them."""
        try:
            self._put(self._phases.local.state, self._piece(path))
        except Exception as error:  # the one guard
            self._on_error(error)

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
            self._used = self._tasks.is_wanted = True
            self._tasks.watch()
            piece = self._pieces[path] = scope_piece(self._roster.name_id(path, SCOPES))
            self._paths[piece] = path
        return piece

    def _put(self, state: ThreadState, piece: str) -> None:
        """Tag the calling thread's next allocations with a scope, and keep from which node on it holds."""
        number = self._sequence()
        starts = state.scope_starts
        if starts and starts[-1] == number:
            state.scope_pieces[-1] = piece
        else:
            starts.append(number)
            state.scope_pieces.append(piece)
            if len(starts) > CHANGES_KEPT:
                del starts[: CHANGES_KEPT // 2], state.scope_pieces[: CHANGES_KEPT // 2]
        self._tag(state, piece)

    def _tag(self, state: ThreadState, piece: str) -> None:
        if not state.token:
            state.token = self._phases.prefix + suffix(OUTSIDE)
        state.scope = piece
        self._phases.recorder.set_token(state.token + piece)

    # -- backward -----------------------------------------------------------------------------------------------

    def before_backward(self, roots: Iterable[Any]) -> None:
        """Hook the graph that is about to run.

        Args:
            roots: Tensors that backward begins from.
        """
        state = self._phases.local.state
        if not self._used:
            return
        numbered = _numbered_nodes([root.grad_fn for root in roots], state.scope_starts)
        last = None
        for number in sorted(numbered, reverse=True):
            place = bisect_right(state.scope_starts, number) - 1
            piece = (state.scope_pieces[place] if place >= 0 else "") or state.scope
            if piece != last:
                last = piece
                self._hook_node(state, number, numbered[number], piece)

    def _hook_node(self, state: ThreadState, number: int, node: Any, piece: str) -> None:
        if state.scoped_nodes.get(number) == piece:  # of a graph that is kept, and walked again
            return
        if len(state.scoped_nodes) > CHANGES_KEPT:
            state.scoped_nodes.clear()
        state.scoped_nodes[number] = piece
        hook = self._hooks.get(piece)
        if hook is None:
            hook = self._hooks[piece] = self._make_hook(piece)
        node.register_prehook(hook)

    def _make_hook(self, piece: str) -> Callable[[Any], None]:
        tracker, local = self, self._phases.local

        def at_work(_gradients: Any) -> None:
            if tracker._active:
                tracker._tag(local.state, piece)

        return at_work


def _numbered_nodes(roots: Iterable[Any], starts: list[int]) -> dict[int, Any]:
    """Return the nodes that ``roots`` lead to, by number; of those older than every change, only the first met."""
    oldest = starts[0] if starts else 0
    found: dict[int, Any] = {}
    waiting = [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        number = node._sequence_nr()
        if number in found or number >= _NO_NUMBER:
            continue
        found[number] = node
        if number >= oldest:
            waiting += [following for following, _ in node.next_functions if following is not None]
    return found
