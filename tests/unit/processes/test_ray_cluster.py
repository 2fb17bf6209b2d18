"""A Ray that cannot be used is named, with what to do."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace

import pytest

from gpuledger.errors import UsageError
from gpuledger.processes import ray_cluster
from gpuledger.processes.ray_cluster import connected


def test_a_ray_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="Ray is not installed"), connected("local"):
        pass


def test_an_address_at_which_nothing_answers_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"--ray {address}: Connection refused"), connected(address):
            pass


def test_local_starts_a_cluster_of_its_own_also_beside_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address, Ray joins a cluster that runs on this machine."""
    begun: list[str | None] = []
    stub = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda address=None, **_how: begun.append(address),
        shutdown=lambda: None,
    )
    monkeypatch.setattr(ray_cluster, "load_ray", lambda: stub)
    with connected("local") as ray:
        assert ray is stub
    assert begun == ["local"]
