"""The profiler's environment variables: what Kineto is told in each case, and what the program finds afterwards."""

from __future__ import annotations

import os
import threading
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
    for name in ("_enable_profiler", "_disable_profiler"):
        original = getattr(torch._C._autograd, name)

        def spied(*args: Any, original: Any = original) -> Any:
            told.append(in_c.get(kineto.TEARDOWN, os.environ.get(kineto.TEARDOWN, "")))
            return original(*args)

        monkeypatch.setattr(torch._C._autograd, name, spied)
    profiler = kineto.Profiler()
    profiler.start()
    profiler.stop(wait=False)
    assert told == [KEPT, KEPT]
    assert in_c.get(kineto.TEARDOWN) == chosen
    assert os.environ.get(kineto.TEARDOWN) == chosen


def test_a_range_does_nothing_unless_a_profiler_records_its_thread() -> None:
    """One of torch that is entered before a profiler begins raises when it ends."""
    import torch

    from gpuledger.collect.adapter import torch_private

    def run_range(name: str) -> None:
        with torch_private.open_range(name):
            torch.ones(2)

    before = torch_private.open_range("begun before")
    before.__enter__()
    with torch.autograd.profiler.profile() as profile:
        before.__exit__(None, None, None)
        run_range("recorded")
        other = threading.Thread(target=run_range, args=("in another thread",))
        other.start()
        other.join()
    names = {event.name for event in profile.function_events or []}
    assert "recorded" in names
    assert not {"begun before", "in another thread"} & names


def test_optimizer_steps_of_threads_end_their_own_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuledger.collect.adapter import torch_private
    from gpuledger.collect.attribution.module_registry import ModuleRegistry
    from gpuledger.collect.passes.call_ranges import CallRanges

    ended: list[tuple[int, int]] = []

    class Range:
        def __enter__(self) -> None:
            self.thread = threading.get_ident()

        def __exit__(self, *_: object) -> None:
            ended.append((self.thread, threading.get_ident()))

    monkeypatch.setattr(torch_private, "open_range", lambda _name: Range())
    one = CallRanges(ModuleRegistry())
    both = threading.Barrier(2)

    def step() -> None:
        one.enter_optimizer()
        both.wait(10)
        one.leave_optimizer()

    threads = [threading.Thread(target=step) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.leave_optimizer()
    assert len(ended) == 2
    assert all(opened == closed for opened, closed in ended)
