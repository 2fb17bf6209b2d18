"""The parent hears of its child's end, whatever other threads there are and whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gpuledger.collect.launch.launch import run_child


@pytest.fixture
def other_thread() -> Iterator[None]:
    """Keep a thread that blocks no signal beside the test, as a numerical library does."""
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("other_thread")
@pytest.mark.parametrize("busy_s", [0, 0.2])
def test_a_child_that_ends_while_the_parent_is_busy_is_waited_for(busy_s: float) -> None:
    assert run_child(["sh", "-c", "exit 3"], os.environ, lambda _: time.sleep(busy_s)) == 3


MANY = """
import os, threading
from gpuledger.collect.launch.launch import run_child
threading.Thread(target=threading.Event().wait, daemon=True).start()
print({run_child(["true"], os.environ) for _ in range(100)})
"""


@pytest.mark.timeout(120)
def test_many_children_that_end_at_once() -> None:
    """In a small process: this one, with torch, takes many times as long to fork."""
    assert subprocess.check_output([sys.executable, "-c", MANY], text=True) == "{0}\n"


SLEEPS = """
import os, time
from gpuledger.collect.launch.child import Lifetime
from gpuledger.collect.launch.launch import run_child
near = 0
for _ in range(1000):
    lifetime = Lifetime()
    run_child(["sleep", "0.02"], os.environ, lambda _: time.sleep(0.03), lifetime)
    took_ms = (lifetime.ended_ns - lifetime.started_ns) / 1e6
    print(took_ms)
    near += took_ms < 21.5
    if near == 10:
        break
"""


def test_the_lifetime_is_from_the_program_s_start_to_its_end_and_not_to_ours() -> None:
    """The program sleeps for 20 ms; a busy machine wakes it some ms late. Our own start takes over 100 ms."""
    took_ms = sorted(map(float, subprocess.check_output([sys.executable, "-c", SLEEPS], text=True).split()))
    assert took_ms[0] >= 19
    assert took_ms[9] < 40, took_ms


SIGNALLED = """
import os, signal, sys
from gpuledger.collect.launch.child import Lifetime
from gpuledger.collect.launch.launch import run_child
lifetime = Lifetime()
status = run_child(["sleep", "60"], os.environ, lambda _: os.kill(os.getpid(), int(sys.argv[1])), lifetime)
print(status, lifetime.stopped_ns and lifetime.started_ns <= lifetime.stopped_ns <= lifetime.ended_ns)
"""


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "-15 True"), (signal.SIGUSR1, "-10 0")])
def test_the_lifetime_has_when_a_signal_that_ends_programs_came(number: signal.Signals, said: str) -> None:
    command = [sys.executable, "-c", SIGNALLED, str(int(number))]
    assert subprocess.check_output(command, text=True, timeout=600).strip() == said
