"""The errors that gpuledger raises for the user.

GpuLedgerError            1   failure
├── UsageError            2   wrong options or arguments
├── InputError            3   a file or run cannot be read
│   └── EmptyRunError     3   the run has no data for the question
├── NoDeviceError         4   no GPU, no driver or no permission
└── BudgetExceededError   5   a limit is exceeded

The number is the exit status of the command. ``run`` and ``watch`` return the program's own status instead.

A message says what it is about and what happened (``t.ledger: no such run``), without a period. A hint is the next
step: a command, or a sentence in the imperative (``Choose another name with --out``). ``tools/list_messages.py`` lists
them all.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class GpuLedgerError(Exception):
    """A failure: a message in one line, and a hint with the next step if there is one."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def words_of(error: Exception) -> str:
    """Return the message of an error, in one line."""
    if isinstance(error, GpuLedgerError):
        return error.message
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"


def words_about(subject: object, error: Exception) -> str:
    """Return the message of an error with its subject first, such as the run that it is about, and not twice."""
    words = words_of(error)
    return words if words.startswith(f"{subject}: ") else f"{subject}: {words}"


class UsageError(GpuLedgerError):
    """Options or arguments are wrong, contradict each other, or name something that does not exist."""

    exit_code = 2


class InputError(GpuLedgerError):
    """A file or a run is missing or damaged, or has a version that this gpuledger cannot read."""

    exit_code = 3


class EmptyRunError(InputError):
    """The run has no data for the question."""


class NoDeviceError(GpuLedgerError):
    """There is no GPU, no driver, or no permission to use it."""

    exit_code = 4


class BudgetExceededError(GpuLedgerError):
    """A limit is exceeded, for example that of ``--require-fit`` or of a limits file."""

    exit_code = 5


@contextmanager
def in_option(option: str) -> Iterator[None]:
    """Put the name of an option first in the message of a usage error, as in ``--fit 'lots': expected a size``."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{option} {error.message}", hint=error.hint) from error
