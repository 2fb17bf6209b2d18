"""The exception that ends a recording: whether memory could not be allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger.collect.flight.host_failures import find_host_failure
from gpuledger.collect.flight.library_failures import find_library_failure, last_error


def see_last_error(happened: Callable[[dict[str, Any]], None]) -> None:
    """Call ``happened(facts)`` if the recording ends because a library or the host could not allocate memory."""
    error = last_error()
    facts = find_library_failure(error) or find_host_failure(error)
    if facts is not None:
        happened(facts)
