"""A function is called in the thread that ends, once, and not after it was stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuledger.collect.passes.thread_end import ThreadEnd


def run(function: Callable[[], None]) -> int:
    """Return the number of a thread that runs a function and ends."""
    thread = threading.Thread(target=function)
    thread.start()
    number = thread.ident
    thread.join()
    assert number is not None
    return number


def test_it_is_called_in_the_thread_that_ends() -> None:
    ended, called = ThreadEnd(), list[int]()
    number = run(lambda: ended.watch(lambda: called.append(threading.get_ident())))
    assert called == [number]
    run(lambda: None)
    assert called == [number]


def test_it_is_not_called_after_it_was_stopped_or_replaced() -> None:
    ended, called = ThreadEnd(), list[str]()

    def watch_twice() -> None:
        ended.watch(lambda: called.append("first"))
        ended.watch(lambda: called.append("second"))

    run(watch_twice)
    assert called == ["second"]

    def watch_and_stop() -> None:
        ended.watch(lambda: called.append("third"))
        ended.stop()

    run(watch_and_stop)
    assert called == ["second"]


def test_the_main_thread_is_not_watched_and_no_call_comes_when_the_watch_is_dropped() -> None:
    called: list[str] = []
    ended = ThreadEnd()
    ended.watch(lambda: called.append("main"))
    del ended
    assert called == []
