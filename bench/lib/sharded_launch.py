"""Start one process per rank, let them use the GPUs in turn with other jobs, and end all of them if one fails.

Usage: WORLD_SIZE=2 GATE=DIRECTORY LOCK=FILE python bench/lib/sharded_launch.py COMMAND…

The ranks import their libraries and write ``GATE/ready.RANK``. Then this process locks LOCK and writes ``GATE/go``.
So libraries of one job are imported while another one uses the GPUs. The lock ends with this process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S, IMPORT_S = 60.0, 300.0
"""Ranks that write no file into their directory for this time are ended, and while they import their libraries."""
MOST_THREADS = 8
"""Threads of an operator on the CPU. If each rank has as many as the host has cores, they wait for each other."""
GRACE_S = 5.0
"""Time for the other ranks to end by themselves after one has failed."""


def main() -> int:
    """Run the command on each rank; return 0, or the highest exit status."""
    ranks, gate = int(os.environ["WORLD_SIZE"]), Path(os.environ["GATE"])
    gate.mkdir(parents=True, exist_ok=True)
    threads = max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // ranks))
    env = {"OMP_NUM_THREADS": str(threads), **os.environ}
    started = [subprocess.Popen(sys.argv[1:], env={**env, "RANK": str(rank)}) for rank in range(ranks)]
    try:
        ready = _wait(started, lambda: all((gate / f"ready.{rank}").exists() for rank in range(ranks)), gate, IMPORT_S)
        with Path(os.environ["LOCK"]).open("w") as lock:
            if ready:
                fcntl.flock(lock, fcntl.LOCK_EX)
                (gate / "go").touch()
                _wait(started, lambda: False, gate, PATIENCE_S)
    finally:
        for one in started:
            one.kill()
        statuses = [abs(one.wait()) for one in started]
    return max(statuses)


def _wait(started: list[subprocess.Popen[bytes]], is_done: Callable[[], bool], gate: Path, patience_s: float) -> bool:
    """Return whether ``is_done`` held before the ranks ended, one of them failed, or nothing happened for long."""
    written, since = -1, time.monotonic()
    while not is_done():
        statuses = [one.poll() for one in started]
        if None not in statuses:
            return False
        if any(statuses):
            time.sleep(GRACE_S)
            return False
        if (found := sum(1 for _ in gate.iterdir())) != written:
            written, since = found, time.monotonic()
        if time.monotonic() - since > patience_s:
            print(f"no rank went on for {patience_s:.0f} s", file=sys.stderr)
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
