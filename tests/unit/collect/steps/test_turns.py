"""Threads in which steps end wait for each other, and it is known which ones wait."""

from __future__ import annotations

import threading
import time

import pytest
from present import present

from gpuledger.collect.steps.turns import Turns


def test_a_thread_that_waits_for_its_turn_is_known_until_it_has_it() -> None:
    turns, seen = Turns(), []
    other = threading.Thread(target=lambda: turns.take(lambda: seen.append(set(turns.waiting))))

    def act() -> None:
        other.start()
        while turns.waiting != {present(other.ident)}:
            time.sleep(0.001)
        turns.take(lambda: seen.append(set(turns.waiting) - {present(other.ident)}))  # inside itself

    turns.take(act)
    other.join()
    assert seen == [set(), set()]
    with pytest.raises(ZeroDivisionError):
        turns.take(lambda: seen.append({1 // len(turns.waiting)}))
    assert not turns.waiting
    turns.take(other.join)
