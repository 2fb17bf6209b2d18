"""The wait for CUPTI to detach ends with the thread that Kineto starts for it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from gpuledger.collect.adapter import kineto


class _Stream:
    def __init__(self) -> None:
        self.queries = 0
        self.detached = threading.Event()

    def query(self) -> None:
        """Let the thread that waits for a CUDA call end at the third one."""
        self.queries += 1
        if self.queries == 3:
            self.detached.set()


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> _Stream:
    one = _Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: one)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return one


def test_the_wait_ends_with_the_thread(stream: _Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "GOING_S", 60.0)
    before = kineto._threads()
    waiting = threading.Thread(target=stream.detached.wait)
    waiting.start()
    kineto._see_cupti_off(before)
    waiting.join()
    assert stream.queries >= 3


@pytest.mark.parametrize("threads", [{"1"}, set()])
def test_without_a_new_thread_the_time_is_used_up(
    threads: set[str], stream: _Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "_threads", lambda: threads)
    monkeypatch.setattr(kineto, "GOING_UNSEEN_S", 0.02)
    started_s = time.monotonic()
    kineto._see_cupti_off({"1"})
    assert time.monotonic() - started_s >= 0.02


def test_an_interrupted_end_waits_for_the_thread_of_its_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    threads = iter([{"1"}, {"1", "kineto"}])

    def interrupted_once(before: set[str]) -> None:
        seen.append(before)
        if len(seen) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(kineto, "_threads", lambda: next(threads))
    monkeypatch.setattr(kineto, "_see_cupti_off", interrupted_once)
    profiler = kineto.Profiler()
    profiler.start()
    profiler._is_on_gpu, profiler._teardown = True, "1"
    with pytest.raises(KeyboardInterrupt):
        profiler.stop(wait=False)
    assert seen == [{"1"}, {"1"}]


def test_no_call_is_made_while_the_program_captures_a_graph(stream: _Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    kineto._see_cupti_off(set())
    assert stream.queries == 0


def test_threads_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(threading.get_native_id()) in kineto._threads()

    def fails(_: Any) -> list[str]:
        raise OSError

    monkeypatch.setattr(kineto, "listdir", fails)
    assert kineto._threads() == set()
