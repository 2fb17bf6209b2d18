"""Functions that run in forks: their results, their errors, and where a signal ended them."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from typing import Any

import psutil
import pytest

from gpuledger.errors import InputError, UsageError
from gpuledger.simulate.estimate.forked import Spare, run_forked


def test_results_and_errors_of_a_fork_arrive() -> None:
    assert run_forked(lambda: {"process": os.getpid()})["process"] != os.getpid()

    def fail() -> dict[str, Any]:
        raise UsageError("wrong", hint="another")

    with pytest.raises(InputError, match="wrong"):
        run_forked(fail)
    with pytest.raises(InputError, match=r"test_forked\.py:\d+: its process ended early, with signal 6"):
        run_forked(lambda: os.abort())


def test_a_line_is_known_after_a_library_has_replaced_the_handlers_of_signals() -> None:
    was_enabled = faulthandler.is_enabled()
    faulthandler.enable()
    signal.signal(signal.SIGABRT, signal.getsignal(signal.SIGABRT))  # as Lightning and Ray do at their end
    try:
        with pytest.raises(InputError, match=r"test_forked\.py:\d+: its process ended early, with signal 6"):
            run_forked(lambda: os.abort())
    finally:
        faulthandler.disable()
        if was_enabled:
            faulthandler.enable()


def test_a_spare_runs_what_is_asked_in_a_process_of_its_own() -> None:
    def run(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["number"] == 2:
            os.abort()
        print("dropped")
        return {"twice": 2 * asked["number"], "process": os.getpid()}

    before = set(psutil.Process().children())
    spare = Spare(run)
    found = [spare.run({"number": number}) for number in (1, 2, 3)]
    spare.end()
    assert [one.get("twice") for one in found] == [2, None, 6]
    assert len({found[0]["process"], found[2]["process"], os.getpid()}) == 3
    assert set(psutil.Process().children()) <= before


def test_ctrl_c_is_left_to_what_a_spare_runs(capfd: pytest.CaptureFixture[str]) -> None:
    """A terminal sends it to the spare process, too, which runs nothing of the user's and has nothing to say."""

    def run(asked: dict[str, Any]) -> dict[str, Any]:
        if asked["interrupted"]:
            os.kill(os.getpid(), signal.SIGINT)
        return {"spare": os.getppid(), "has_handler": signal.getsignal(signal.SIGINT) is before}

    before = signal.getsignal(signal.SIGINT)
    spare = Spare(run)
    found = spare.run({"interrupted": False})
    os.kill(found["spare"], signal.SIGINT)
    assert spare.run({"interrupted": False}) == {"spare": found["spare"], "has_handler": True}
    assert capfd.readouterr() == ("", "")
    assert spare.run({"interrupted": True}) == {}
    os.kill(found["spare"], signal.SIGKILL)
    while psutil.pid_exists(found["spare"]) and psutil.Process(found["spare"]).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert spare.run({"interrupted": False}) == {}
    spare.end()
    assert signal.getsignal(signal.SIGINT) is before
