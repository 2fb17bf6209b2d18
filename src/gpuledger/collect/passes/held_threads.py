"""Hold the program's other threads at their next module call while a profile of all threads starts or stops.

It is that of an outermost module if it comes soon, so that calls are in the profile as a whole.

PyTorch's profiler can crash the program if it stops while another thread is inside an operator, or if it starts again
before that operator has ended. ``bench/harm/profile_threads.py`` counts the crashes, with and without held threads.

All waits are bounded. The starting thread can have a lock that a held one needs, or the other way round.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from gpuledger.collect.adapter import torch_entrances, torch_private
from gpuledger.collect.adapter.guard import take_out_all
from gpuledger.collect.adapter.instrument import CannotInstrumentError, Observation, remove_all
from gpuledger.collect.adapter.observer import Absorbs, Observer
from gpuledger.collect.adapter.other_threads import do_others_compute
from gpuledger.collect.attribution.rank_journal import RankJournal

WAIT_S = 0.1
"""Longest wait for the other threads to reach a module call."""

OUTERMOST_S = 0.05
"""Time in which a thread is held at calls outside all others only. After it, one is held in the middle of its call."""

HOLD_S = 2.0
"""Longest time for which another thread is held. The first start of the profiler on a GPU takes some 0.5 s."""

MOST_WAITS, REST_S = 3, 1.0
"""Number of waits in vain, after which no thread is held for some time: waits take a tenth of the program's time then.
"""

_POLL_S = 0.001


class HeldThreads:
    """Holds other threads inside :meth:`held`.

    Args:
        journal: Where the pauses are written.
        waiting: Ids of threads that wait for the end of a step in another thread. They count as held.
        absorbs: Handles exceptions raised in gpuledger's code.
    """

    def __init__(self, journal: RankJournal, waiting: set[int], absorbs: Absorbs) -> None:
        self._journal, self._waiting, self._absorbs = journal, waiting, absorbs
        self._pid = os.getpid()
        self.waits_in_vain = 0
        """Number of waits after which other threads still computed."""
        self._is_shut = False
        self._locks: list[threading.Lock] = []
        """One for each held thread. ``threading.Event`` can stay locked if a signal handler of the program raises."""
        self._held: set[int] = set()
        """Ids of the threads that are held."""
        self._until_s = self._rests_until_s = self._inside_from_s = 0.0
        self._holder: dict[str, int] = {}
        """The thread that holds the others."""
        self._observations: list[Observation] = []

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the other threads until the end of the block or :meth:`let_go`. Usable inside itself.

        Yields:
            Whether no other thread computes. False if that takes too long, or if another thread holds the others.
        """
        own = threading.get_ident()
        if self._holder.setdefault("thread", own) != own and time.monotonic() < self._until_s:
            yield False
        elif self.are_held:
            yield not self._do_others_compute()
        else:
            self._holder["thread"], started_ns = own, time.time_ns()
            try:
                do_wait = self._hold_all()
                self._journal.pause("time", started_ns)
                yield do_wait
            finally:
                take_out_all([self._open, partial(self._leave, own)])

    @property
    def are_held(self) -> bool:
        """Return whether the calling thread holds the others now."""
        is_shut = self._is_shut and time.monotonic() < self._until_s
        return is_shut and self._holder.get("thread") == threading.get_ident()

    @property
    def waiting_count(self) -> int:
        """Return the number of threads that wait for the end of a step in another thread."""
        return len(self._waiting)

    def let_go(self) -> None:
        """Let the other threads go on, if the calling one holds them."""
        if self._holder.get("thread") == threading.get_ident():
            self._open()

    def _leave(self, own: int) -> None:
        if self._holder.get("thread") == own:
            self._holder.clear()

    def _open(self) -> None:
        self._is_shut = False
        while self._locks:
            lock = self._locks[-1]
            if lock.locked():  # it is not if a signal handler of the program has interrupted this before
                lock.release()
            self._locks.remove(lock)
        remove_all(self._observations)

    @contextmanager
    def quiet(self) -> Iterator[bool]:
        """Wait until no other thread computes.

        Threads that wait in the standard library can go on at any time, so the block must be short.

        Yields:
            Whether no other thread computes.
        """
        ends_s = time.monotonic() + WAIT_S
        while self._do_others_compute() and time.monotonic() < ends_s:
            time.sleep(_POLL_S)
        yield not self._do_others_compute()

    def _hold_all(self) -> bool:
        """Wait until no other thread computes; return False if that takes too long."""
        now_s = time.monotonic()
        if self.waits_in_vain >= MOST_WAITS and now_s < self._rests_until_s:
            return not self._do_others_compute()
        self._until_s, self._inside_from_s = now_s + HOLD_S, now_s + OUTERMOST_S
        self._is_shut = True
        try:
            observer = Observer(self._hold, absorbs=self._absorbs, hands_over=True)
            Observation(torch_entrances.module_call(), observer, outermost=True, among=self._observations)
        except CannotInstrumentError:  # the program has replaced the function: only what waits already is waited for
            self._is_shut = False
        while self._do_others_compute():
            if not self._is_shut or time.monotonic() > now_s + WAIT_S:
                self.waits_in_vain += 1
                self._rests_until_s = time.monotonic() + REST_S
                return False
            time.sleep(_POLL_S)
        return True

    def _do_others_compute(self) -> bool:
        return do_others_compute(self._waiting | self._held)

    def _hold(self, *_: Any) -> None:
        """Wait at the beginning of a module call.

        Not inside a backward pass: the thread that has called it is inside an operator. Nobody opens the gate in a
        forked child.
        """
        wait_s = self._until_s - time.monotonic()
        if not self._is_shut or wait_s <= 0 or self._holder.get("thread") in (None, threading.get_ident()):
            return
        if time.monotonic() < self._inside_from_s and _is_inside_call():
            return
        if os.getpid() == self._pid and not torch_private.is_in_backward():
            own, lock = threading.get_ident(), threading.Lock()
            lock.acquire()
            self._locks.append(lock)
            try:
                self._held.add(own)
                if self._is_shut:
                    lock.acquire(timeout=wait_s)
            finally:
                self._held.discard(own)


def _is_inside_call() -> bool:
    """Return whether the calling thread is inside two calls of modules or more."""
    code, calls = torch_entrances.module_call().__code__, 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and calls < 2:
        one = frame.f_code
        calls += one.co_filename == code.co_filename and one.co_qualname == code.co_qualname
        frame = frame.f_back
    return calls > 1
