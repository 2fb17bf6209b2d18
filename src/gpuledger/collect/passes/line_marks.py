"""Source lines in a profiled step: a range around every operator that Python calls, with the id of its Python stack.

A dispatch mode opens the ranges. With one, PyTorch takes other ways, which need more memory: autograd adds up gradients
in new tensors instead of in place, and a linear layer with an input of four dimensions adds its bias so. So the mode is
taken out

- during backward, whose operators belong to the line of their forward operator. A mode for torch's functions, of which
  autograd knows nothing, opens the ranges of what Python code calls there: hooks, with an optimizer or an update of the
  program's own, and functions of the program with a backward,
- in calls of PyTorch's own modules, whose operators all belong to the line that calls the module.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gpuledger.collect.adapter import dispatch_modes, dynamo, torch_entrances, torch_private
from gpuledger.collect.adapter.dispatch_modes import CompilerNeutralMode, may_take_out_mode
from gpuledger.collect.adapter.guard import Guard, forget_own_frames
from gpuledger.collect.adapter.instrument import Observation, remove_all
from gpuledger.collect.adapter.observer import Observer
from gpuledger.collect.adapter.program_objects import attributes_of, modules_below
from gpuledger.collect.attribution.stacks import StackTable, is_autograds_own
from gpuledger.model.journal.journal import LINE_RANGE

TORCHS_MODULES = "torch.nn.modules."
_CHANGED_BY = "_forward_hooks", "_forward_pre_hooks", "forward"
"""Attributes that a module of PyTorch's has, or has content in, if its call runs other code, too."""


class LineMarks:
    """Opens ranges between :meth:`install` and :meth:`remove` in the calling thread.

    Args:
        stacks: Assigns ids to Python stacks.
        guard: Handles exceptions raised in gpuledger's code. After an error of gpuledger, no more ranges are opened.
    """

    def __init__(self, stacks: StackTable, guard: Guard) -> None:
        self.stacks = stacks
        self._guard = guard
        self._mode: _LineMode | None = None
        self._functions: _FunctionMode | None = None
        """The mode that is active in a backward pass."""
        self._texts: dict[int, str] = {}
        self._on_operator: Callable[[], None] | None = None
        self.is_on = False
        self._thread = 0
        self._observations: list[Observation] = []
        self._is_suspended = False
        self._around_module: list[Any] = []
        """The open range around a module of PyTorch's."""

    def install(self) -> None:
        """Start opening ranges.

        Raises:
            CannotInstrumentError: the functions of backward, or of a module's call, are not those of a supported torch.
        """
        absorbs = self._guard.absorbs
        around = Observer(self._suspend, self._resume, self._resume, absorbs=absorbs)
        for function in (torch_entrances.backward(), torch_entrances.grad()):
            self._observations.append(Observation(function, around))
        engine = Observer(self._enter_engine, self._leave_engine, self._leave_engine, absorbs=absorbs)
        self._observations.append(Observation(torch_entrances.engine(), engine))
        module = Observer(self._enter_module, self._leave_module, self._leave_module, absorbs=absorbs)
        self._observations.append(Observation(torch_entrances.module_call(), module))
        self.is_on, self._thread = True, threading.get_ident()
        self._mode = _LineMode(self).__enter__()  # type: ignore[no-untyped-call]  # torch has not annotated it

    def _enter_engine(self, *_: Any) -> bool | None:
        """Open ranges of torch's functions while autograd's nodes run, unless code is compiled.

        The compiler would see the mode, and compile the program's functions again.
        """
        is_wanted = self.is_on and self._is_suspended and self._functions is None
        if not is_wanted or threading.get_ident() != self._thread or dynamo.compiled_frames():
            return None
        self._functions = _FunctionMode(self)
        self._functions.__enter__()  # type: ignore[no-untyped-call]
        return True

    def _leave_engine(self, *_: Any) -> None:
        functions, self._functions = self._functions, None
        if functions is not None and dispatch_modes.innermost_function_mode() is functions:
            functions.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _suspend(self, *_: Any) -> bool | None:
        """Take the mode out before a backward pass, unless a mode of the program is above it."""
        if self._mode is None or dispatch_modes.innermost_dispatch_mode() is not self._mode:
            return None
        self._is_suspended = dispatch_modes.take_out_dispatch_mode(self._mode)
        return self._is_suspended or None

    def _resume(self, *_: Any) -> None:
        if self._mode is not None and self._is_suspended:
            # in one statement, so that an error before or after it leaves the mode and this attribute in agreement
            self._is_suspended = self._mode.__enter__() is None  # type: ignore[no-untyped-call]

    def _enter_module(self, module: nn.Module, *_: Any) -> bool | None:
        """Open one range around a call of PyTorch's own module, and take the mode out inside it."""
        counts = self._on_operator is not None
        if not self.is_on or counts or torch.compiler._is_compiling_flag or not _runs_only_torchs_code(module):
            return None
        if not self._suspend():
            return None
        self._thread = threading.get_ident()
        self._around_module.append(self.around(sys._getframe(1).f_back))
        return True

    def _leave_module(self, *_: Any) -> None:
        self._close_around_module()
        self._resume()

    def _close_around_module(self) -> None:
        """Close the range around a module, once, in the thread that has opened it."""
        while self._around_module and threading.get_ident() == self._thread:
            opened = self._around_module.pop()
            if opened is not None:
                opened.__exit__(None, None, None)

    def count(self, on_operator: Callable[[], None]) -> None:
        """Call ``on_operator``, which must not raise, after each operator of this thread. No range is opened yet."""
        self._on_operator, self._thread = on_operator, threading.get_ident()
        if self._mode is None:
            self.install()
            self.is_on = False

    @staticmethod
    def is_in_operator() -> bool:
        """Return whether the calling thread is inside an operator that the mode handles."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not _LineMode.__torch_dispatch__.__code__:
            frame = frame.f_back
        return frame is not None

    def remove(self) -> bool:
        """Stop opening ranges, and remove the mode. Return False if it cannot be removed now; then call it again."""
        self.is_on = False
        self._close_around_module()
        self.stacks.forget_code()
        if self._mode is None or self._is_suspended:
            self._mode = self._on_operator = None
            remove_all(self._observations)
            return True
        if torch_private.is_in_backward() or self.is_in_operator() or not may_take_out_mode(self._guard.absorbs):
            return False
        if dispatch_modes.take_out_dispatch_mode(self._mode):
            self._mode = self._on_operator = None
            remove_all(self._observations)
        return self._mode is None

    def mark(self, frame: FrameType | None) -> None:
        """Leave a mark with the line of ``frame``: a range that is closed as soon as it is opened."""
        opened = self.around(frame)
        if opened is not None:
            opened.__exit__(None, None, None)

    def around(self, frame: FrameType | None, function: Any = None) -> Any:
        """Return an open range for an operator called from ``frame``; None if it gets none.

        Args:
            frame: The innermost Python frame.
            function: The function of torch that is called; one that reads an attribute, such as ``.grad``, gets none.
        """
        try:
            if getattr(function, "__name__", "") == "__get__":
                return None
            return None if not self.is_on or is_autograds_own(frame) else self._opened(frame)
        except RecursionError:
            return None
        except BaseException as error:
            self._fail(error)
            return None

    def operator_ended(self) -> None:
        """Count an operator."""
        try:
            if self._on_operator is not None and threading.get_ident() == self._thread:
                self._on_operator()
        except RecursionError:
            pass
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Open no more ranges after an error of gpuledger; an error of the program is raised again."""
        self.is_on = False
        if not self._guard.absorbs(error):
            raise error

    def _opened(self, frame: FrameType | None) -> Any:
        number = self.stacks.intern_frame(frame)
        if number < 0:
            return None
        opened = torch_private.open_range(self._texts.get(number) or self._text(number))
        opened.__enter__()
        return opened

    def _text(self, number: int) -> str:
        text = self._texts[number] = f"{LINE_RANGE}{number}"
        return text


def _runs_only_torchs_code(module: nn.Module) -> bool:
    """Return whether a call of ``module`` runs code of PyTorch's alone, as far as its modules and hooks tell."""
    return all(
        type(one).__module__.startswith(TORCHS_MODULES) and not any(map(attributes_of(one).get, _CHANGED_BY))
        for _, _, one in modules_below(module)
    )


class _FunctionMode(TorchFunctionMode):
    """Sees every function of torch that Python code calls."""

    def __init__(self, marks: LineMarks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        opened = None
        try:
            with suppress(RecursionError):
                opened = self._marks.around(sys._getframe().f_back, func)
            return func(*args, **(kwargs or {}))
        except BaseException as error:
            forget_own_frames(error)
            raise
        finally:
            if opened is not None:
                opened.__exit__(None, None, None)


class _LineMode(CompilerNeutralMode):
    """Sees every operator."""

    def __init__(self, marks: LineMarks) -> None:
        super().__init__()
        self._marks = marks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            try:
                opened = self._marks.around(sys._getframe().f_back)
            except RecursionError:  # no room for the call at the recursion limit
                opened = None
            try:
                return func(*args, **(kwargs or {}))
            finally:
                if opened is not None:
                    opened.__exit__(None, None, None)
                try:
                    self._marks.operator_ended()
                except RecursionError:
                    opened = None
        except BaseException as error:
            forget_own_frames(error)
            raise
