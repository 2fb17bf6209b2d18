"""Light watches on outermost module calls, for the time when nothing is recorded."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuledger.collect.guard import forget_frames


class _Watch:
    """Replaces ``nn.Module.__call__`` until it is removed."""

    def __init__(self) -> None:
        self._theirs: Any = None
        self._ours: Any = None

    def install(self) -> None:
        """Put the watch in."""
        self._theirs = nn.Module.__call__
        self._ours = self._wrapped(self._theirs)
        nn.Module.__call__ = self._ours  # type: ignore[method-assign]

    def remove(self) -> None:
        """Take the watch out, unless somebody else has wrapped it in turn: then it does nothing any more."""
        theirs, self._theirs = self._theirs, None
        if theirs is not None and nn.Module.__call__ is self._ours:
            nn.Module.__call__ = theirs  # type: ignore[method-assign]

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        raise AssertionError("each watch has its own")


class FirstCall(_Watch):
    """Calls ``begin()`` once, before the first outermost module runs, and is gone."""

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__()
        self._begin = begin

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        watch = self

        @functools.wraps(original)
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for one
            if watch._theirs is None or torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            watch.remove()
            watch._begin()
            return self(*args, **kwargs)

        return __call__


class OutermostCalls(_Watch):
    """Calls ``began(module, args, kwargs)`` before each outermost call and ``ended(module)`` after it."""

    def __init__(self, began: Callable[[nn.Module, Any, Any], None], ended: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self._began = began
        self._ended = ended
        self._inside = threading.local()

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        watch, inside = self, self._inside

        @functools.wraps(original)
        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 - it stands in for one
            if torch.compiler.is_compiling():
                return original(self, *args, **kwargs)
            try:
                if watch._theirs is None or getattr(inside, "call", False):
                    return original(self, *args, **kwargs)
                watch._began(self, args, kwargs)
                if watch._theirs is None:
                    return self(*args, **kwargs)
                inside.call = True
                try:
                    return original(self, *args, **kwargs)
                finally:
                    inside.call = False
                    watch._ended(self)
            except BaseException as error:
                forget_frames(error)
                raise

        return __call__


def in_data_worker() -> bool:
    """Return whether this process is a DataLoader's worker."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None
