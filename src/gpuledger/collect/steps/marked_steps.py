"""``gpuledger.step()``: the program marks the end of a step. Works with or without a recording; needs no torch."""

from __future__ import annotations

from collections.abc import Callable

_listener: Callable[[], None] | None = None


def listen(listener: Callable[[], None]) -> None:
    """Call ``listener``, and no other, at every mark from now on."""
    global _listener
    _listener = listener


def stop_listening(listener: Callable[[], None]) -> None:
    """Remove a listener. Does nothing if another has replaced it."""
    global _listener
    if _listener is listener:
        _listener = None


def step() -> None:
    """Mark the end of a step in the recording of this process. Does nothing if there is none.

    Use it if a step is neither one step of an optimizer nor one call of a module. After the first mark, only marks end
    steps. With ``--step-on optimizer``, ``module`` or ``call:NAME``, marks are ignored.

    Example:
        >>> import gpuledger
        >>> for batch in range(3):
        ...     total = batch * 2
        ...     gpuledger.step()
    """
    listener = _listener
    if listener is not None:
        listener()
