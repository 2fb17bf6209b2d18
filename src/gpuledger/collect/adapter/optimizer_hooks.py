"""Hooks before and after every optimizer step that can be removed at any time.

torch keeps these hooks in one dictionary and iterates over it while calling them. Removing an entry during the
iteration raises "OrderedDict mutated during iteration" in the program. So a removed hook becomes a no-op first. It
leaves the dictionary when no iteration is in progress: immediately if no optimizer steps, in its own call if it is the
last entry, or in the next step from a hook of the other kind. If several threads train, it stays as a no-op.

It also stays if ``torch.compile`` has compiled something meanwhile. A compiled optimizer step is valid only for the
number of hooks that it was compiled with, and would be compiled again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gpuledger.collect.adapter import dynamo, torch_private
from gpuledger.collect.adapter.frames import frames_by_thread
from gpuledger.collect.adapter.observer import Absorbs, absorbs_nothing
from gpuledger.collect.adapter.other_threads import undisturbed
from gpuledger.collect.adapter.traced import traced_as

_Hooks = dict[int, Any]
_BEFORE: _Hooks = torch_optimizer._global_optimizer_pre_hooks
_AFTER: _Hooks = torch_optimizer._global_optimizer_post_hooks
_STEP_NAME = "wrapper"
"""Name of torch's wrapper around ``Optimizer.step``, which calls the hooks."""

_RESUMED = f"torch_dynamo_resume_in_{_STEP_NAME}_"
"""Begins the name of the function with the part of that wrapper after a graph break."""

_running: dict[int, OptimizerHook] = {}
"""Thread id -> gpuledger's hook that runs in that thread."""


def _nothing(*_: Any) -> None:
    """Do nothing."""


class OptimizerHook:
    """One registered hook, from construction until :meth:`remove`.

    Args:
        called: Called with the optimizer.
        hooks: torch's dictionary of hooks to register in.
        absorbs: Handles an exception of gpuledger's code, as :meth:`gpuledger.collect.adapter.guard.Guard.absorbs`
            does.
    """

    def __init__(self, called: Callable[[Any], None], hooks: _Hooks, absorbs: Absorbs) -> None:
        self._called: Callable[[Any], None] | None = called
        self._absorbs = absorbs
        self._hooks = hooks
        register = register_optimizer_step_pre_hook if hooks is _BEFORE else register_optimizer_step_post_hook
        self._remover: OptimizerHook | None = None
        self._compiled_before = dynamo.compiled_frames()
        with undisturbed():
            self._handle = torch_private.register_hook(register, self._run)

    @property
    def is_last(self) -> bool:
        """Return whether torch calls no further hook after this one."""
        return next(reversed(self._hooks), None) == self._handle.id

    @property
    def has_left(self) -> bool:
        """Return whether nothing of this hook is left in torch's dictionaries."""
        return self._handle.id not in self._hooks and self._remover is None

    def remove(self) -> None:
        """Stop calling back, and leave torch's dictionary as soon as no iteration over it is in progress."""
        self._called = None
        self._leave_when_safe()

    def _leave_when_safe(self) -> None:
        """Leave torch's dictionary, or register a temporary hook of the other kind that removes this one later."""
        if dynamo.compiled_frames() not in (0, self._compiled_before):
            return
        if self._left():
            self._end_remover()
        elif self._remover is None and self._may_ask_another():
            others = _AFTER if self._hooks is _BEFORE else _BEFORE
            self._remover = OptimizerHook(self._remove_both, others, self._absorbs)

    def _may_ask_another(self) -> bool:
        """Return whether the iteration in progress is over this dictionary and not over the one of the other kind."""
        running = _running.get(threading.get_ident())
        is_this_one = running is not None and running._hooks is self._hooks
        return is_this_one and threading.active_count() == 1 and _steps_under_way(sys._getframe()) == 1

    def _remove_both(self, _optimizer: Any) -> None:
        """Remove this hook and the temporary hook that called this method."""
        self._left()
        self._end_remover()

    def _end_remover(self) -> None:
        """Remove the temporary hook if there is one and no iteration over it is in progress."""
        if self._remover is not None:
            self._remover._called = None
            if self._remover._left():
                self._remover = None

    def _left(self) -> bool:
        """Leave torch's dictionary if no iteration is in progress. Return whether it was left."""
        with undisturbed() as alone:
            if alone and self._may_leave():
                self._handle.remove()
        return self._handle.id not in self._hooks

    @traced_as(_nothing)
    def _run(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """The function that torch calls. In a compiled step it does nothing, so that it adds nothing to the graph."""
        try:
            self._call(optimizer)
        except RecursionError:  # at the recursion limit there is no room for the callback's frame
            return
        except BaseException as error:
            if not self._absorbs(error):
                raise
            self._call_again(optimizer)

    def _call_again(self, optimizer: Any) -> None:
        """After an error of gpuledger, which has ended the recording: leave torch's dictionary where that is safe."""
        try:
            self._call(optimizer)
        except BaseException as error:
            if not self._absorbs(error):
                raise

    def _call(self, optimizer: Any) -> None:
        called, thread = self._called, threading.get_ident()
        before = _running.get(thread)
        _running[thread] = self
        try:
            if called is not None:
                called(optimizer)
            else:
                self._leave_when_safe()
        finally:
            if before is None:
                del _running[thread]
            else:
                _running[thread] = before

    def _may_leave(self) -> bool:
        """Return whether no thread iterates over the dictionary, or only this one and at its last entry."""
        here = threading.get_ident()
        if any(map(_steps_under_way, frames_by_thread().values())):
            return False
        running, steps = _running.get(here), _steps_under_way(sys._getframe())
        if not steps or running is None:
            return not steps
        return steps == 1 and (running._hooks is not self._hooks or (running is self and self.is_last))


def _steps_under_way(frame: FrameType | None) -> int:
    """Return the number of optimizer steps in progress in a thread's frames. One step can run inside another."""
    count = 0
    while frame is not None:
        code = frame.f_code
        count += code.co_name == _STEP_NAME and code.co_filename == torch_optimizer.__file__
        frame = frame.f_back
    return count


def began_compiled() -> bool:
    """Return whether ``torch.compile`` has compiled the beginning of the step that ends. Called in a hook after it.

    The hooks before the step were compiled with it, so none was called.
    """
    if not dynamo.is_imported():
        return False
    frame = _frame_of_step()
    return frame is not None and frame.f_code.co_name.startswith(_RESUMED)


_frames_inside = [0]
"""Number of frames from the last time that :func:`_frame_of_step` looked, up to torch's own."""


def _frame_of_step() -> FrameType | None:
    """Return the frame of torch's function that calls the hook at work.

    It is as far up as in the step before: looking at all frames on the way there makes objects of them.
    """
    try:
        frame: FrameType | None = sys._getframe(_frames_inside[0])
    except ValueError:  # there are fewer
        frame = None
    if frame is None or frame.f_code.co_filename != torch_optimizer.__file__:
        frame, count = sys._getframe(), 0
        while frame is not None and frame.f_code.co_filename != torch_optimizer.__file__:
            frame, count = frame.f_back, count + 1
        _frames_inside[0] = count
    return frame


def is_guarded(register: Callable[..., OptimizerHook]) -> bool:
    """Return whether compiled code is valid only for the present number of hooks of a kind.

    With one more, it would be compiled again. It is code that was compiled together with a step, or with the part of a
    step before what breaks the graph.

    Args:
        register: :func:`before_steps` or :func:`after_steps`.
    """
    name = "_global_optimizer_pre_hooks" if register is before_steps else "_global_optimizer_post_hooks"
    return any(name in guards for guards in dynamo.guards_of_compiled_code())


def before_steps(called: Callable[[Any], None], absorbs: Absorbs = absorbs_nothing) -> OptimizerHook:
    """Call ``called(optimizer)`` before every optimizer's step."""
    return OptimizerHook(called, _BEFORE, absorbs)


def after_steps(called: Callable[[Any], None], absorbs: Absorbs = absorbs_nothing) -> OptimizerHook:
    """Call ``called(optimizer)`` after every optimizer's step that did not raise."""
    return OptimizerHook(called, _AFTER, absorbs)
