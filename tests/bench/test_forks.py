"""Functions in forked processes: what they return, raise and leave behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from folders import ROOT

sys.path.insert(0, str(ROOT / "bench" / "lib"))

from forks import in_a_fork


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
