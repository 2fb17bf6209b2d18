"""The exception that ends a program after its steps, and the signal that raises it in the main thread."""

from __future__ import annotations

import signal

OWN_SIGNAL = signal.SIGRTMAX - 3


class StepsDone(BaseException):
    """Ends the program after its steps. Not an ``Exception``, so that the program does not catch it."""
