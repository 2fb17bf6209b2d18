"""Every error gpuledger raises on purpose.

GpuLedgerError            1   failure
├── UsageError            2   the call itself is wrong
├── InputError            3   a file or run cannot be read
│   └── EmptyRunError     3   the run holds nothing to answer from
├── NoDeviceError         4   no GPU, no driver or no permission
└── BudgetExceededError   5   a gate is not met

The number is the exit code of the command line. ``run`` and ``watch`` return the program's own status instead.
"""

from __future__ import annotations


class GpuLedgerError(Exception):
    """A failure with a message that starts with the object and, where there is one, the next step."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def words_of(error: Exception) -> str:
    """Return an error in one line."""
    if isinstance(error, GpuLedgerError):
        return error.message
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"


class UsageError(GpuLedgerError):
    """The arguments do not fit together or name something that does not exist."""

    exit_code = 2


class InputError(GpuLedgerError):
    """A file or a run is missing, damaged, or of a version this gpuledger does not read."""

    exit_code = 3


class EmptyRunError(InputError):
    """The run has no rows for the question asked."""


class NoDeviceError(GpuLedgerError):
    """There is no GPU, no driver, or no permission to read it."""

    exit_code = 4


class BudgetExceededError(GpuLedgerError):
    """A gate such as ``--require-fit`` or a budget is not met."""

    exit_code = 5
