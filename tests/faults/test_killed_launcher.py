"""Who kills the launcher means the program: it dies with it, and so does everything that gpuledger started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from present import present
from programs import GPULEDGER, TRAIN, environment, execute, start, write_script

from gpuledger.processes.parent_death import dying_with
from gpuledger.services.runs import load

SAYS_ITS_NUMBER = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"


def children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def has_ended(pid: int, within_s: float = 600.0) -> bool:
    """Return whether a process ends within some seconds."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # dead, and nobody waits for it
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory for temporary files of what a test starts."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


@pytest.mark.parametrize("words", [["train.py"], ["--", "sh", "-c", "echo $$; exec sleep 60"]], ids=["python", "sh"])
def test_the_program_dies_with_the_launcher(words: list[str], tmp_path: Path) -> None:
    write_script(tmp_path, SAYS_ITS_NUMBER)
    command = [*GPULEDGER, "run", "-q", "--out", "run", *words]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        program = int(launcher.stdout.readline())
        launcher.kill()
        launcher.wait(600)
        assert has_ended(program)
    assert load(tmp_path / "run.ledger").manifest.status == "running"


@pytest.mark.torch
def test_the_viewer_dies_with_the_launcher_and_the_run_is_readable(tmp_path: Path, temporary: Path) -> None:
    write_script(tmp_path, TRAIN + "step(); step()\nprint('ready', flush=True)\nimport time\ntime.sleep(60)")
    launcher = start(["train.py"], tmp_path, options=("-q", "--live", "--steps", "1:9"))
    begun = children_of(launcher.pid)
    assert len(begun) == 2
    while not list(temporary.glob("gpuledger-live-*")):
        time.sleep(0.02)
    launcher.kill()
    launcher.communicate(timeout=600)
    assert all(has_ended(pid) for pid in begun)
    assert not list(temporary.glob("gpuledger-*"))
    assert present(present(load(tmp_path / "train.ledger").rank().manifest.window).last_step) >= 1


def test_a_viewer_ends_with_the_program(tmp_path: Path, temporary: Path) -> None:
    write_script(tmp_path, "print('ready', flush=True)\ninput()")
    launcher = start(["train.py"], tmp_path, options=("-q", "--live", "--devices", "cpu"), stdin=subprocess.PIPE)
    begun = children_of(launcher.pid)
    while not list(temporary.glob("gpuledger-live-*")):
        time.sleep(0.02)
    launcher.communicate(b"\n", timeout=600)
    assert launcher.returncode == 0
    assert all(has_ended(pid) for pid in begun)
    assert not list(temporary.glob("gpuledger-*"))


def test_a_child_whose_parent_has_died_already_ends_at_once() -> None:
    child = os.fork()
    if child == 0:
        dying_with(os.getpid())()  # nobody is its own parent: as if that had died in between
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


INSIDE = """
import os, resource, sys
print(sys.argv, os.getcwd(), oct(os.umask(0)), sorted(os.listdir("/proc/self/fd")))
print([resource.getrlimit(number) for number in range(16)], os.getpgrp(), os.getsid(0), os.getpriority(0, 0))
print(sorted(name for name in os.environ if not name.startswith(("GPULEDGER_", "PYTHONPATH"))))
told = ("SigPnd", "SigBlk", "SigIgn", "SigCgt", "Shd", "Cap", "NoNewPrivs")  # SigQ counts those of all processes
print([line for line in open("/proc/self/status") if line.startswith(told)])
"""


@pytest.mark.parametrize("shell", ["umask 027; ulimit -n 99; exec", "exec <&-; exec", "trap '' CHLD HUP; exec"])
def test_the_program_finds_everything_as_bare(shell: str, tmp_path: Path) -> None:
    """Descriptors, mask, limits, group, session, environment's names, and signals blocked, ignored and caught."""
    write_script(tmp_path, INSIDE)
    said = []
    for launcher in ((), (*GPULEDGER[1:], "run", "-q")):
        line = " ".join([shell, sys.executable, *launcher, "train.py", "'$HOME'", "''"])
        said.append(execute(["sh", "-c", line], tmp_path))
    assert said[0] == said[1]
