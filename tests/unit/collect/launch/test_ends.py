"""How a rank's process ended is known although its parent process has read the status first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launchers import KEEPS_STATUS

from gpuledger.collect.launch.ends import RankEnds

RUN_ID = "0123456789abcdef"


def ends_of(run: Path, command: list[str]) -> list[int | None]:
    """Return the statuses of the processes that ``command`` starts as ranks, which end once they are waited for."""
    ends = RankEnds(run, RUN_ID)
    ends.start()
    try:
        with subprocess.Popen(command, env={**os.environ, "GPULEDGER_RUN_ID": RUN_ID}) as running:
            while not ends._awaited:
                time.sleep(0.01)
            (run / "awaited").touch()
        assert running.returncode == 0
        while not ends.found:
            time.sleep(0.01)
    finally:
        found = ends.stop()
    return [one.status for one in found.values()]


@pytest.mark.parametrize(("how", "status"), [("os._exit(1)", None), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)])
def test_a_signal_that_the_parent_has_seen_is_asked_of_the_kernel(how: str, status: int | None, tmp_path: Path) -> None:
    """Ray ends its workers with 1 when they have done their work, so that says nothing."""
    rank = f"""
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the child at once, so no one sees a zombie
if os.fork() == 0:
    os.mkdir({str(tmp_path / "rank-0")!r})
    with open({str(tmp_path / "rank-0" / "pid")!r}, "w") as stream:
        stream.write(str(os.getpid()))
    while not os.path.exists({str(tmp_path / "awaited")!r}):
        time.sleep(0.01)
    {how}
try:
    os.wait()
except ChildProcessError:
    pass
"""
    found = ends_of(tmp_path, [sys.executable, "-S", "-c", rank])
    assert found == [status if KEEPS_STATUS else None]
