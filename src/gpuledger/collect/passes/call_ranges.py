"""Ranges in the profile: of module calls, backward passes and optimizer steps, each in its thread.

A call that began before the profile has no range, because nothing observes its end. As long as a thread is inside such
a call, each range outside all others comes after a mark that says so.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter import dynamo, torch_private
from gpuledger.collect.adapter.torch_entrances import modules_in_calls
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.model.accounts import Phase
from gpuledger.model.journal.journal import EARLIER_CALL, MODULE_RANGE, NO_GRAD, PHASE_RANGE


class _OutermostRange(list[Any]):
    """The range of a call of an outermost module.

    Args:
        whole_calls: Gets begin and end of the call when it ends, in Unix ns.
    """

    def __init__(self, whole_calls: list[tuple[int, int]]) -> None:
        super().__init__()
        self._whole_calls, self._began_ns = whole_calls, time.time_ns()

    def ended(self) -> None:
        """Store the call."""
        self._whole_calls.append((self._began_ns, time.time_ns()))


class CallRanges:
    """Opens and closes ranges. A range belongs to the thread that has opened it.

    Args:
        registry: Ids of modules.
    """

    def __init__(self, registry: ModuleRegistry) -> None:
        self._registry = registry
        self._texts: dict[int, str] = {}
        self._optimizer_ranges: dict[int, list[Any]] = {}
        """Ranges of optimizer steps in progress, by thread."""
        self._ranges: list[tuple[int, list[Any]]] = []
        """Thread and range of every call, in order.

        The inner list with the range is emptied when the call ends.
        """
        self._whole_calls: list[tuple[int, int]] = []
        """Begin and end of the calls of outermost modules, in Unix ns."""
        self._earlier: dict[int, int] = {}
        """Thread -> number of calls from before the profile that it was inside when that was last looked at."""
        self._outermost: dict[int, list[Any]] = {}
        """Thread -> its last range of a call outside all others, while it is inside a call from before the profile."""

    def begin(self) -> None:
        """Begin a profile."""
        self._earlier.clear()
        self._outermost.clear()

    def opened_for(self, module: nn.Module) -> list[Any] | None:
        """Return what :meth:`opened` returns for a call of a module; None for a module of the compiler's own."""
        self._mark_earlier(in_call=True)
        number = self._number_of(module)
        if number < 0:
            return None
        text = self._texts[number]
        held = list[Any]() if self._registry.path_of(number) else _OutermostRange(self._whole_calls)
        self._open(text if torch.is_grad_enabled() else text + NO_GRAD, held)
        thread = threading.get_ident()
        if self._earlier[thread] and not self._outermost.get(thread):
            self._outermost[thread] = held
        return held

    def opened(self, name: str) -> list[Any]:
        """Return a list with a range that has just been opened. The list is emptied when the range ends."""
        self._mark_earlier()
        held: list[Any] = []
        self._open(name, held)
        return held

    def _number_of(self, module: nn.Module) -> int:
        """Return a module's id; -1 for a module of the compiler's own."""
        if self._registry.gone:
            self._registry.forget_gone()
        number = self._registry.module_ids.get(id(module), -1)
        if number not in self._texts:
            if number < 0 and dynamo.is_compilers_own(module):
                return -1
            number = self._registry.register(module)
            self._texts[number] = f"{MODULE_RANGE}{number}"
        return number

    def _mark_earlier(self, *, in_call: bool = False) -> None:
        """Mark that this thread has been inside a call from before the profile until now, if it has.

        Args:
            in_call: Whether it is inside a call that has no range yet, but will get one.
        """
        thread = threading.get_ident()
        if self._earlier.get(thread) == 0 or self._outermost.get(thread):
            return
        modules = modules_in_calls()[: -1 if in_call else None]
        count = self._earlier[thread] = min(len(modules), self._earlier.get(thread, len(modules)))
        numbers = [self._number_of(module) for module in modules[:count] if module is not None]
        number = next((one for one in reversed(numbers) if one >= 0), -1)
        if number >= 0:
            with torch_private.open_range(f"{EARLIER_CALL}{number}{'' if torch.is_grad_enabled() else NO_GRAD}"):
                pass

    def _open(self, name: str, held: list[Any]) -> None:
        opened = torch_private.open_range(name)
        opened.__enter__()
        held.append(opened)
        self._ranges.append((threading.get_ident(), held))

    def has_whole_call(self, from_ns: int, until_ns: int) -> bool:
        """Return whether a call of an outermost module has begun and ended between two times, in Unix ns."""
        return any(from_ns <= began_ns and ended_ns <= until_ns for began_ns, ended_ns in list(self._whole_calls))

    @staticmethod
    def leave(opened: list[Any], _result: Any) -> None:
        """Close a range, once."""
        if opened:
            opened.pop().__exit__(None, None, None)
            if isinstance(opened, _OutermostRange):
                opened.ended()

    @staticmethod
    def fail(opened: list[Any]) -> None:
        """Close the range of a call that raised."""
        CallRanges.leave(opened, None)

    def enter_optimizer(self) -> None:
        """Open the range of an optimizer step."""
        self._mark_earlier()
        opened = torch_private.open_range(f"{PHASE_RANGE}{int(Phase.OPTIMIZER)}")
        opened.__enter__()
        self._optimizer_ranges.setdefault(threading.get_ident(), []).append(opened)

    def leave_optimizer(self) -> None:
        """Close the range of an optimizer step. Those of other threads can be in progress at the same time."""
        opened = self._optimizer_ranges.get(threading.get_ident())
        if opened:
            opened.pop().__exit__(None, None, None)

    def leave_optimizers(self) -> None:
        """Close the ranges of all optimizer steps in progress in this thread."""
        while self._optimizer_ranges.get(threading.get_ident()):
            self.leave_optimizer()

    def end_all(self) -> None:
        """Close the ranges of calls in progress in this thread. Kineto prints warnings about open ranges."""
        self._mark_earlier()
        self._optimizer_ranges.clear()
        thread = threading.get_ident()
        while self._ranges:
            made_in, held = self._ranges.pop()
            if made_in == thread:
                self.leave(held, None)
        self._whole_calls.clear()
