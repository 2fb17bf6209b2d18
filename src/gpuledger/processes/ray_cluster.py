"""Connect to a Ray cluster."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuledger.errors import UsageError, words_of

LOCAL = "local"
_ANSWER_S = 10.0
"""Time limit in s for the head of a cluster to answer."""


def load_ray() -> Any:
    """Return the module ``ray``.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise UsageError("--ray: Ray is not installed", hint="pip install 'gpuledger[cluster]'") from error


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to Ray at an address, or start it on this machine and stop it at the end.

    If this process is already connected to Ray, that connection is used, and stays.

    Raises:
        UsageError: Ray is not installed, or cannot be reached.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    _check(address)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address == LOCAL:  # without an address, Ray would join a cluster that runs on this machine
            ray.init(address=LOCAL, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _unreachable(address, " ".join(str(error).split())[:200]) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check(address: str) -> None:
    """Check that something answers at HOST:PORT. Ray would try for two minutes.

    Raises:
        UsageError: nothing answers.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, words_of(error)) from error


def _unreachable(address: str, why: str) -> UsageError:
    return UsageError(
        f"--ray {address}: {why}", hint="Use --ray local, or the address of a Ray cluster: --ray HOST:6379"
    )
