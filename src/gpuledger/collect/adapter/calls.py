"""Lightweight observers of outermost module calls, for the time outside the memory recording."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuledger.collect.adapter.instrument import Observation
from gpuledger.collect.adapter.observer import Absorbs, Observer, absorbs_nothing
from gpuledger.collect.adapter.torch_entrances import module_call


class CallObserver:
    """Observes module calls until it is removed.

    Args:
        absorbs: Handles an exception raised in gpuledger's code, as for :class:`Observer`.
    """

    def __init__(self, absorbs: Absorbs) -> None:
        self._absorbs = absorbs
        self._observation: Observation | None = None

    def _is_in(self) -> bool:
        return self._observation is not None

    def install(self) -> None:
        """Start observing, outside all observers of module calls that are already installed.

        Raises:
            CannotInstrumentError: ``nn.Module.__call__`` is not the one of a supported torch.
        """
        observer = Observer(self._enter, self._leave, self._fail, absorbs=self._absorbs, hands_over=True)
        self._observation = Observation(module_call(), observer, outermost=True)

    def remove(self) -> None:
        """Stop observing."""
        if self._observation is not None:
            self._observation.remove()
            self._observation = None

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object | None:
        raise AssertionError("each watch has its own")

    def _leave(self, token: Any, result: Any) -> None:
        """End an outermost call."""

    def _fail(self, token: Any) -> None:
        self._leave(token, None)


class FirstCall(CallObserver):
    """Calls ``begin()`` once, before the first outermost module runs, and then removes itself."""

    def __init__(self, begin: Callable[[], None], absorbs: Absorbs = absorbs_nothing) -> None:
        super().__init__(absorbs)
        self._begin = begin

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_in() and not torch.compiler._is_compiling_flag:
            self.remove()
            self._begin()


class OutermostCalls(CallObserver):
    """Calls ``began(module, args, kwargs)`` before each outermost call and ``ended(module)`` after it."""

    def __init__(
        self,
        began: Callable[[nn.Module, Any, Any], None],
        ended: Callable[[nn.Module], None],
        absorbs: Absorbs = absorbs_nothing,
    ) -> None:
        super().__init__(absorbs)
        self._began = began
        self._ended = ended
        self._inside = threading.local()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[nn.Module] | None:
        if not self._is_in() or torch.compiler._is_compiling_flag or getattr(self._inside, "call", False):
            return None
        self._began(module, args, kwargs)
        if not self._is_in():  # observers that begin() installs see this call, too
            return None
        self._inside.call = True
        return [module]

    def _leave(self, token: list[nn.Module], result: Any) -> None:
        if token:  # ended() must run once per call, whether the call returned or raised
            self._inside.call = False
            self._ended(token.pop())


def in_data_worker() -> bool:
    """Return whether this process is a DataLoader worker."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None
