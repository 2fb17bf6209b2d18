"""The profiler's environment variables: what Kineto is told in each case, and what the program finds afterwards."""

from __future__ import annotations

import os
from typing import Any

import pytest

pytestmark = pytest.mark.torch

KEPT = "0"
"""CUPTI stays attached. Detaching it in a process that makes no further CUDA call hangs that process at exit."""


@pytest.mark.parametrize("chosen", [None, "0", "1"])
def test_cupti_is_not_detached_where_no_gpu_is_used(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from gpuledger.collect.adapter import kineto

    if chosen is None:
        monkeypatch.delenv(kineto.TEARDOWN, raising=False)
    else:
        monkeypatch.setenv(kineto.TEARDOWN, chosen)
    told: list[str] = []
    in_c: dict[str, str] = {}

    def putenv(name: str, value: str) -> None:
        in_c[name] = value

    def unsetenv(name: str) -> None:
        in_c.pop(name, None)

    monkeypatch.setattr(os, "putenv", putenv)
    monkeypatch.setattr(os, "unsetenv", unsetenv)
    profile: Any = torch.autograd.profiler.profile
    for name in ("_start_trace", "__exit__"):
        original = getattr(profile, name)

        def spied(*args: Any, original: Any = original) -> Any:
            told.append(in_c.get(kineto.TEARDOWN, os.environ.get(kineto.TEARDOWN, "")))
            return original(*args)

        monkeypatch.setattr(profile, name, spied)
    profiler = kineto.Profiler()
    profiler.start()
    profiler.stop(wait=False)
    assert told == [KEPT, KEPT]
    assert in_c.get(kineto.TEARDOWN) == chosen
    assert os.environ.get(kineto.TEARDOWN) == chosen
