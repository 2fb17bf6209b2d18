"""Other threads are held at a module call while a profile of all threads starts or stops, and never for long."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from held import is_held
from interruptions import DeadlineError, interrupted
from torch import nn

from gpuledger.collect.adapter import kineto
from gpuledger.collect.adapter.guard import Guard
from gpuledger.collect.attribution.module_registry import ModuleRegistry
from gpuledger.collect.attribution.rank_journal import RankJournal
from gpuledger.collect.passes import held_threads
from gpuledger.collect.passes.held_threads import MOST_WAITS, HeldThreads
from gpuledger.collect.passes.time_pass import TimePass

pytestmark = pytest.mark.torch

GUARD = Guard(lambda error: pytest.fail(str(error)))


class Busy:
    """A thread that does something all the time."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.count = 0
        self.errors: list[BaseException] = []
        self._work, self._is_over = work, False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.goes_on()

    def _run(self) -> None:
        while not self._is_over:
            self._work()
            self.count += 1

    def goes_on(self) -> None:
        """Wait until it has done more."""
        before = self.count
        while self.count < before + 2:
            time.sleep(0.001)

    def end(self) -> None:
        self._is_over = True
        self.thread.join()


@pytest.fixture
def busy() -> Iterator[Callable[[Callable[[], Any]], Busy]]:
    begun: list[Busy] = []

    def begin(work: Callable[[], Any]) -> Busy:
        begun.append(Busy(work))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldThreads:
    monkeypatch.setattr(held_threads, "WAIT_S", 20.0)  # a busy machine takes its time
    monkeypatch.setattr(held_threads, "HOLD_S", 60.0)
    return HeldThreads(RankJournal(lambda: tmp_path, []), set(), GUARD.absorbs)


def calls_a_module() -> None:
    nn.Linear(8, 8)(torch.ones(4, 8)).sum().backward()


def computes() -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)


def test_threads_that_compute_are_held_at_a_module_call_and_then_go_on(
    others: HeldThreads, busy: Callable[[Callable[[], Any]], Busy]
) -> None:
    threads = [busy(calls_a_module) for _ in range(3)]
    code = nn.Module.__call__.__code__
    with others.held() as do_wait:
        assert do_wait
        assert others.are_held
        before = [one.count for one in threads]
        with others.held() as still, others.quiet() as is_quiet:
            assert still
            assert is_quiet
        assert [one.count for one in threads] == before
        others.let_go()
        for one in threads:
            one.goes_on()
    assert not others.are_held
    assert nn.Module.__call__.__code__ is code


def test_a_thread_that_calls_no_module_is_waited_for_a_few_times(
    others: HeldThreads, busy: Callable[[Callable[[], Any]], Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_threads, "WAIT_S", 0.02)
    monkeypatch.setattr(held_threads, "REST_S", 1000.0)
    one = busy(computes)
    for number in range(MOST_WAITS):
        assert others.waits_in_vain == number
        with others.held() as do_wait:
            assert not do_wait
        one.goes_on()
    asked: list[None] = []
    monkeypatch.setattr(held_threads, "Observation", lambda *_args, **_kwargs: asked.append(None))
    with others.held() as do_wait:
        assert not do_wait
    assert others.waits_in_vain == MOST_WAITS
    assert not asked


def test_threads_go_on_in_time_if_nobody_lets_them(
    others: HeldThreads, busy: Callable[[Callable[[], Any]], Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_threads, "HOLD_S", 0.2)
    one = busy(calls_a_module)
    with others.held():
        one.goes_on()  # the caller waits for something that the held thread has
        assert not others.are_held


def test_threads_go_on_if_the_block_raises(others: HeldThreads, busy: Callable[[Callable[[], Any]], Busy]) -> None:
    one = busy(calls_a_module)
    with pytest.raises(KeyError), others.held():
        raise KeyError
    one.goes_on()


def test_one_thread_at_a_time_holds_the_others(others: HeldThreads) -> None:
    seen: list[bool] = []

    def hold() -> None:
        with others.held() as do_wait:
            seen.append(do_wait)

    with others.held():
        thread = threading.Thread(target=hold)
        thread.start()
        thread.join()
        assert others.are_held
    assert seen == [False]


def test_a_thread_inside_a_backward_pass_is_not_held(others: HeldThreads) -> None:
    """The one that has called the pass is inside an operator, so nobody could start before it ends."""
    inner = nn.Linear(4, 4)
    called: list[None] = []

    def train() -> None:
        x = torch.ones(4, requires_grad=True)
        x.register_hook(lambda gradient: called.append(None) or inner(gradient).detach())
        x.sum().backward()

    with others.held():
        thread = threading.Thread(target=train)
        thread.start()
        thread.join(20)
        assert called


def test_a_forked_child_holds_nothing(others: HeldThreads) -> None:
    with others.held():
        others._holder["thread"] = -1  # as if another thread had forked
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            nn.Linear(2, 2)(torch.ones(2))
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        others._holder["thread"] = threading.get_ident()


def test_an_interrupt_passes_through_a_held_thread_at_once(others: HeldThreads) -> None:
    """Here the main thread is the one that is held."""
    does_hold, is_over = threading.Event(), threading.Event()
    main = threading.main_thread()

    def hold() -> None:
        with others.held():
            does_hold.set()
            while not (is_held(main) or is_over.is_set()):
                time.sleep(0.001)
            signal.pthread_kill(main.ident or 0, signal.SIGINT)
            is_over.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    does_hold.wait(20)
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            nn.Linear(2, 2)(torch.ones(2))
        assert not is_over.is_set()
        assert not any(str(entry.path).endswith(f"{os.sep}held_threads.py") for entry in raised.traceback)
    finally:
        is_over.set()
        thread.join()


def test_a_hold_can_be_interrupted_anywhere(others: HeldThreads) -> None:
    def hold() -> None:
        with others.held() as do_wait, others.quiet() as is_quiet:
            assert do_wait
            assert is_quiet

    code, interval_s = nn.Module.__call__.__code__, sys.getswitchinterval()
    with interrupted(at=-1, as_signals=True) as events:
        hold()
        places = events()
    assert places > 50
    for at in range(1, places):
        with suppress(DeadlineError), interrupted(at, as_signals=True):
            hold()
        assert sys.getswitchinterval() == interval_s, at
        others._until_s = 0.0  # where ``with`` itself is interrupted, nothing but time lets the others go on
        nn.Linear(2, 2)(torch.ones(2))
        hold()
        assert nn.Module.__call__.__code__ is code, at


def test_a_profile_of_all_threads_starts_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "_of_all_threads", [])
    assert kineto.can_record_all_threads()
    others = HeldThreads(RankJournal(lambda: Path(), []), set(), GUARD.absorbs)
    for expected in (True, False):
        profile = kineto.Profiler(all_threads=others.quiet)
        profile.start()
        assert profile.has_all_threads is expected
        profile.stop(wait=False)
    assert not kineto.can_record_all_threads()


def test_a_thread_is_recorded_alone_if_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "_of_all_threads", [])
    monkeypatch.setattr(held_threads, "WAIT_S", 0.01)
    monkeypatch.setattr(held_threads, "do_others_compute", lambda _waiting: True)
    others = HeldThreads(RankJournal(lambda: Path(), []), set(), GUARD.absorbs)
    profile = kineto.Profiler(all_threads=others.quiet)
    profile.start()
    assert not profile.has_all_threads
    torch.ones(2).exp()
    assert any(event.name() == "aten::exp" for event in profile.stop(wait=False))
    assert kineto.can_record_all_threads()


@pytest.mark.parametrize("compute", [True, False])
def test_the_timing_measurement_waits_for_other_threads_a_few_times(
    compute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "_of_all_threads", [])
    monkeypatch.setattr(held_threads, "WAIT_S", 0.01)
    monkeypatch.setattr(held_threads, "do_others_compute", lambda _waiting: compute)
    monkeypatch.setattr(ModuleRegistry, "runs_in_other_threads", lambda _registry: True)
    journal = RankJournal(lambda: tmp_path, [])
    others = HeldThreads(journal, set(), GUARD.absorbs)
    time_pass = TimePass(journal, ModuleRegistry(), GUARD, lambda: None, others)
    starts: list[bool] = []
    while not starts or not starts[-1]:
        with time_pass.starting() as can_start:
            starts.append(can_start)
            if can_start:
                time_pass.begin()
    assert starts == ([False, False, True] if compute else [True])
    assert time_pass.has_all_threads is not compute
    monkeypatch.setattr(held_threads, "do_others_compute", lambda _waiting: True)
    assert time_pass.end(keep=False) is compute  # one of the calling thread alone can always be stopped there
    assert time_pass.end(keep=False, at_once=True)
