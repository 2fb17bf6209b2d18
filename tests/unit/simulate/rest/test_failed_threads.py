"""A simulated program that waits for a thread which has failed ends with the error of the thread."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from gpuledger.simulate.gpu.patches import Patches
from gpuledger.simulate.rest import failed_threads
from gpuledger.simulate.rest.ending import StepsDone
from gpuledger.simulate.rest.failed_threads import FailedThreads, ThreadFailedError, failure_of
from gpuledger.simulate.rest.side_effects import guard_against_effects

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def fail(*_: object) -> None:
    raise ValueError("no GPU in this thread")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailedThreads]:
    monkeypatch.setattr(failed_threads, "WAITS_S", 0.02)
    monkeypatch.setattr(failed_threads, "_LOOK_S", 0.01)
    monkeypatch.setattr(failed_threads, "_BUSY_FRAC", 1e9)  # whatever else this machine does
    patches = Patches()
    found = FailedThreads()
    found.install(patches)
    yield found
    patches.undo()


def starts_thread() -> None:
    threading.Thread(target=fail).start()


def gives_work() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fail)


@pytest.mark.parametrize("begin", [starts_thread, gives_work])
def test_the_main_thread_gets_the_error_where_it_waits(begin: Any, threads: FailedThreads) -> None:
    def program() -> None:
        begin()
        queue.Queue[int]().get()

    with threads.raising(), pytest.raises(ThreadFailedError) as raised:
        program()
    assert repr(failure_of(raised.value)) == "ValueError('no GPU in this thread')"
    assert failure_of(raised.value.error) is raised.value.error


def test_the_last_step_of_a_thread_ends_a_program_that_must_not_send_signals(threads: FailedThreads) -> None:
    """The rest of a program is guarded. The signal to the main thread is not the program's."""
    refused: list[str] = []

    def take_last_step() -> None:
        raise StepsDone

    def refuse(what: str) -> None:
        refused.append(what)
        raise StepsDone

    def serve() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(take_last_step)
            queue.Queue[int]().get(timeout=20)

    guard_against_effects(refuse)
    try:
        with threads.raising(), pytest.raises(ThreadFailedError) as raised:
            serve()
        with pytest.raises(StepsDone):
            signal.pthread_kill(threading.get_ident(), 0)
    finally:
        guard_against_effects(None)
    assert isinstance(failure_of(raised.value), StepsDone)
    assert refused == ["sends a signal"]


def test_what_the_program_does_to_end_can_wait_for_threads_too(threads: FailedThreads) -> None:
    waited = []

    def program() -> None:
        starts_thread()
        try:
            threading.Event().wait()
        finally:
            waited.append("once")
            threading.Event().wait()

    with threads.raising(), pytest.raises(ThreadFailedError):
        program()
    assert waited == ["once"]


def test_a_main_thread_that_works_or_has_its_own_error_is_left_alone(threads: FailedThreads) -> None:
    looks = iter(range(20))
    with threads.raising():
        starts_thread()
        for _ in looks:
            time.sleep(0.01)  # in the program's own frame
        Future[int]().set_exception(ValueError("of the main thread"))
    assert next(looks, None) is None


def test_threads_that_work_are_waited_for(threads: FailedThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter(range(1_000_000))
    monkeypatch.setattr(failed_threads, "_BUSY_FRAC", 0.2)
    monkeypatch.setattr(time, "process_time", lambda: float(next(used)))
    done = threading.Event()
    with threads.raising():
        starts_thread()
        threading.Timer(0.3, done.set).start()
        assert done.wait()


def test_a_program_that_has_ended_waits_for_threads_that_work(
    threads: FailedThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for those that wait, of which it has a pool and a server."""
    used, done, goes = iter(range(1_000_000)), threading.Event(), threading.Event()
    monkeypatch.setattr(failed_threads, "_BUSY_FRAC", 0.2)
    monkeypatch.setattr(failed_threads, "_IDLE_S", 0.1)
    with monkeypatch.context() as busy, ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        busy.setattr(time, "process_time", lambda: float(next(used)))
        threading.Timer(0.3, done.set).start()
        threads.wait_for_others()
        assert done.is_set()
    server = threading.Thread(target=goes.wait)
    server.start()
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    threads.wait_for_others()
    assert server.is_alive()
    goes.set()
    server.join()


def test_without_an_error_nothing_watches(threads: FailedThreads) -> None:
    before = threading.enumerate()
    with threads.raising():
        assert set(threading.enumerate()) <= set(before)  # those of earlier tests may have ended meanwhile


def test_a_process_does_not_wait_for_threads_that_wait_forever_and_ends_in_order() -> None:
    program = (
        "import atexit, threading; from gpuledger.simulate.estimate.child import end_with_threads; "
        "atexit.register(print, 'at exit'); threading.Thread(target=threading.Event().wait).start(); "
        "end_with_threads(3)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert (ended.returncode, ended.stdout) == (3, "at exit\n")
