"""The one guard: nothing of gpuledger's may reach the program."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Guard:
    """Wraps the entrances from torch's hooks, so that an error of ours ends the recording and not the program.

    Args:
        fail: Takes the error; must not raise.
    """

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self.ended = False
        """Whether wrapped functions do nothing any more."""
        self._fail = fail
        self._pid = os.getpid()

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that no error of ours leaves it; it does nothing once the recording has ended."""
        kept = self.for_good(function)

        def guarded(*args: Any, **kwargs: Any) -> None:
            if not (torch.compiler.is_compiling() or self.ended):
                kept(*args, **kwargs)

        return guarded

    def for_good(self, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` so that no error of ours leaves it; in a forked child it does nothing."""

        def guarded(*args: Any, **kwargs: Any) -> None:
            if os.getpid() != self._pid:
                return
            try:
                function(*args, **kwargs)
            except Exception as error:
                self._fail(error)

        return guarded


def calling(method: weakref.WeakMethod[Callable[[], None]]) -> Callable[[], None]:
    """Return a function that calls a method while its owner lives: for who never forgets a function he was given."""

    def call() -> None:
        alive = method()
        if alive is not None:
            alive()

    return call


def forget_frames(error: BaseException, *also: str) -> None:
    """Take the calling frame, and those of the files in ``also`` right below it, out of an error's traceback.

    To be followed by a bare ``raise``, which adds no frame: so the program's traceback shows its own frames only.
    """
    place = error.__traceback__
    if place is not None:
        place = place.tb_next
    while place is not None and place.tb_frame.f_code.co_filename in also:
        place = place.tb_next
    error.__traceback__ = place


def describe(error: BaseException) -> str:
    """Return an error in one line, with the file and line that raised it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" ({Path(place.tb_frame.f_code.co_filename).name}:{place.tb_lineno})" if place else ""
    return f"{type(error).__name__}: {error}{where}"
