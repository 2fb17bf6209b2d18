"""The exception that ends a program after its steps."""

from __future__ import annotations


class StepsDone(BaseException):
    """Ends the program after its steps. Not an ``Exception``, so that the program does not catch it."""
