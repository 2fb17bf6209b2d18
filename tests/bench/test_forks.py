"""Functions in forked processes: what they return, raise and leave behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from folders import ROOT

sys.path.insert(0, str(ROOT / "bench" / "lib"))

from forks import Fork, in_a_fork


def test_the_result_is_that_of_another_process() -> None:
    assert in_a_fork(lambda: {"parent": os.getppid()}) == {"parent": os.getpid()}


def test_an_error_is_returned() -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("no such model")

    found = in_a_fork(fail)
    assert found["error"] == "ValueError: no such model"
    assert found["traceback"].endswith("ValueError: no such model\n")


def test_a_process_that_dies_or_takes_too_long_has_no_result() -> None:
    def die() -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def wait() -> dict[str, Any]:
        time.sleep(60)
        return {}

    assert in_a_fork(die)["error"] == in_a_fork(wait, limit_s=1)["error"] == "the process died or took too long"


def test_forks_that_take_turns_keep_their_state() -> None:
    def begin() -> Callable[[Any], Any]:
        seen: list[int] = []

        def answer(request: Any) -> Any:
            seen.append(request)
            return [os.getpid(), sum(seen)]

        return answer

    with Fork(begin) as one, Fork(begin) as other:
        told = [fork.ask(number) for number in (1, 2, 3) for fork in (one, other)]
    assert [total for _, total in told] == [1, 1, 3, 3, 6, 6]
    assert len({pid for pid, _ in told} | {os.getpid()}) == 3


def test_an_error_in_a_fork_and_its_death_are_raised_here() -> None:
    def begin() -> Callable[[Any], Any]:
        return lambda request: os.kill(os.getpid(), signal.SIGKILL) if request == "die" else {}[request]

    with Fork(begin) as fork, pytest.raises(RuntimeError, match="KeyError: 'no such thing'"):
        fork.ask("no such thing")
    with Fork(begin) as fork:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the process died"):
                fork.ask("die")
