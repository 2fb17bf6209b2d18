"""What the parts of a fit share: its progress, its threads, and the error if scikit-learn is not installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from gpuledger.errors import UsageError

OnProgress = Callable[[float], None]
"""Called during a fit with the share that is done, from 0 to 1."""


def no_progress(_done_frac: float) -> None:
    """Do nothing: the progress of a fit that nobody waits for."""


def part_of(on_progress: OnProgress, start_frac: float, end_frac: float) -> OnProgress:
    """Return the progress of one part, which begins and ends at these shares of the whole fit."""
    return lambda done_frac: on_progress(start_frac + (end_frac - start_frac) * done_frac)


def no_scikit_learn() -> UsageError:
    """Return the error if scikit-learn, or SciPy, which comes with it, is not installed."""
    return UsageError("predictions need scikit-learn, which is not installed", hint="pip install 'gpuledger[predict]'")


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which linear algebra and trees use one thread.

    The matrices and tables of a fit are small. With more threads, a fit takes several times as long if other programs
    use the CPU, and hardly less otherwise. Only libraries that are loaded can be limited, so they are imported first.

    Raises:
        UsageError: scikit-learn is not installed.
    """
    try:
        import scipy.linalg.lapack  # noqa: F401
        import sklearn.ensemble  # noqa: F401
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        raise no_scikit_learn() from error
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits
