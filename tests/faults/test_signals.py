"""Signals reach the program as they would without us, and the launcher ends as the program ended."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import quick
from folders import DATA
from present import present
from programs import GPULEDGER, TRAIN, environment, execute, manifest, signalled, start, write_script

from gpuledger.services.runs import load

WAITS = """
import os, signal, sys, time
def told(number, frame):
    os.write(1, b"told %d\\n" % number)  # print cannot be entered again by a handler
    {then}
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, told)
os.write(1, b"ready\\n")
time.sleep(30)
"""
FOR_PROGRAM = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def hangups_end_programs() -> Iterator[None]:
    """Have programs start as on a terminal: ``nohup`` ignores hangups, and what tests start would inherit that.

    Pytest keeps on living through a hangup, because a handler is not inherited and does nothing here.
    """
    before = signal.getsignal(signal.SIGHUP)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [*FOR_PROGRAM, signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name)
def test_the_launcher_dies_as_the_program_dies(number: signal.Signals, tmp_path: Path) -> None:
    write_script(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(30)")
    ended = signalled(start(["train.py"], tmp_path), number)
    assert ended.status == -number
    run = manifest(tmp_path / "train.ledger")
    assert (run["status"], run["signal"], run["exit_status"]) == ("complete", number, 128 + number)


@pytest.mark.parametrize("number", FOR_PROGRAM, ids=lambda number: number.name)
def test_the_programs_own_handler_is_called_once(number: signal.Signals, tmp_path: Path) -> None:
    write_script(tmp_path, WAITS.format(then="sys.exit(5)"))
    ended = signalled(start(["train.py"], tmp_path), number)
    assert ended == type(ended)(5, f"told {int(number)}\n".encode(), b"")


KILLED_IN_STEP_12 = """
import os, signal
for _ in range(11): step()
model(torch.ones(8, 16))
os.kill(os.getpid(), signal.{name})
"""


@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_costs_the_step_it_comes_in_alone(number: signal.Signals, tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + KILLED_IN_STEP_12.format(name=number.name))
    ended = quick.recorded(["train.py"], tmp_path, options=("--steps", "1:100000"))
    assert ended.status == -number
    assert b"gpuledger show train.ledger" in ended.stderr
    rank = load(tmp_path / "train.ledger").rank()
    assert (rank.manifest.status, rank.manifest.damaged) == ("cut off", ())
    assert present(rank.manifest.window).to_json() == {"first_step": 1, "last_step": 11, "asked": [1, 100000]}
    assert [check for check in rank.manifest.checks if not check.ok] == []
    steps = rank.table("steps", ("step", "start_index", "end_index")).to_pylist()
    assert [row["step"] for row in steps] == list(range(1, 12))
    assert all(before["end_index"] + 1 == after["start_index"] for before, after in pairwise(steps))


def on_terminal(directory: Path, options: list[str]) -> tuple[int, bytes]:
    """Return status and output of a recorded program on a terminal of its own where Ctrl-C is typed.

    The leader of the terminal's session waits until the output was read: when it ends, the kernel discards the rest.
    """
    (ended, tell_end), (was_read, tell_read) = os.pipe(), os.pipe()
    pid, terminal = pty.fork()
    if pid == 0:
        os.close(tell_read)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.chdir(directory)
            os.execve(sys.executable, [*GPULEDGER, "run", *options, "train.py"], environment())
        os.write(tell_end, str(os.waitpid(child, 0)[1]).encode())
        os.read(was_read, 1)
        os._exit(0)
    try:
        seen = b""
        while b"ready" not in seen:
            seen += os.read(terminal, 1024)
        os.write(terminal, b"\x03")
        while ended not in select.select([terminal, ended], [], [])[0]:
            seen += os.read(terminal, 1024)
        while select.select([terminal], [], [], 0)[0]:
            seen += os.read(terminal, 1024)
        return os.waitstatus_to_exitcode(int(os.read(ended, 64))), seen
    finally:
        for one in (tell_read, was_read, ended, tell_end, terminal):
            os.close(one)
        os.waitpid(pid, 0)


def test_ctrl_c_reaches_the_program_once(tmp_path: Path) -> None:
    source = """
    import time
    for turn in range(2):
        try:
            print("ready" if turn == 0 else "", flush=True)
            time.sleep(60 if turn == 0 else 2)
            print("slept")
        except KeyboardInterrupt:
            print("interrupted")
    raise SystemExit(6)
    """
    write_script(tmp_path, source)
    status, seen = on_terminal(tmp_path, ["-q"])
    said = seen.replace(b"^C", b" ").split()  # the terminal's echo can come before the end of the line
    assert (status, said) == (6, [b"ready", b"interrupted", b"slept"])


def test_ctrl_c_ends_the_launcher_as_it_ends_the_program(tmp_path: Path) -> None:
    write_script(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(30)")
    status, seen = on_terminal(tmp_path, [])
    assert status == -signal.SIGINT
    assert seen.count(b"KeyboardInterrupt") == 1
    assert manifest(tmp_path / "train.ledger")["signal"] == signal.SIGINT


INHERITED = """
import signal
numbers = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
print([(number.name, str(signal.getsignal(number))) for number in numbers])
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
"""
STARTED_WITH = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGALRM])
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_dispositions_and_mask_are_inherited(tmp_path: Path) -> None:
    """``nohup`` and background jobs start a program with signals ignored: it must find them so."""
    write_script(tmp_path, INHERITED)
    write_script(tmp_path, STARTED_WITH, "outer.py")
    alone = execute([sys.executable, "outer.py", sys.executable, "train.py"], tmp_path)
    below = execute([sys.executable, "outer.py", *GPULEDGER, "run", "-q", "train.py"], tmp_path)
    assert b"('SIGHUP', '1')" in alone.stdout
    assert below == alone


def test_a_background_job_ignores_sigint(tmp_path: Path) -> None:
    source = """
    import pathlib, time
    print("ready", flush=True)
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    print("slept")
    """
    write_script(tmp_path, source)
    command = ["sh", "-c", f"{sys.executable} -m gpuledger run -q train.py & echo $!; wait $!"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        assert shell.stdout.readline() == b"ready\n"
        os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
        (tmp_path / "go").touch()
        assert shell.stdout.read() == b"slept\n"
        assert shell.wait(600) == 0


def test_stop_and_continue(tmp_path: Path) -> None:
    write_script(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(0.5)\nprint('on')")
    running = start(["train.py"], tmp_path, start_new_session=True)
    os.killpg(running.pid, signal.SIGSTOP)
    time.sleep(0.2)
    os.killpg(running.pid, signal.SIGCONT)
    assert running.communicate(timeout=600)[0] == b"on\n"
    assert running.returncode == 0


IMPORTS = """
import os, signal, sys, tempfile
from pathlib import Path
from gpuledger import __main__
from gpuledger.cli import main as commands
def wait(prog_name):
    from gpuledger.services.runs import load_foreign
    assert load_foreign(Path(sys.argv[1])).ranks
    os.write(1, f"{len(list(Path(tempfile.gettempdir()).glob('gpuledger-*')))}\\n".encode())
    while True:
        signal.pause()
commands.main = wait
__main__.start()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_command_that_a_signal_ends_leaves_no_temporary_files(number: signal.Signals, tmp_path: Path) -> None:
    """It has imported a log, to show it."""
    log = next((DATA / "memory_csv").glob("*.csv"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-c", IMPORTS, str(log)]
    with subprocess.Popen(command, env=environment(TMPDIR=str(temporary)), stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"1\n"
        running.send_signal(number)
        assert running.wait() == -number
    assert not list(temporary.iterdir())


@pytest.mark.torch
def test_an_estimate_that_a_signal_ends_leaves_no_temporary_files(tmp_path: Path) -> None:
    """Its process that simulates the program dies with it."""
    write_script(tmp_path, "import time\nopen('ready', 'w').close()\nwhile True:\n    time.sleep(0.05)")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [*GPULEDGER, "estimate", "-q", "--gpu", "l4", "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(TMPDIR=str(temporary))) as running:
        while not (tmp_path / "ready").exists():
            assert running.poll() is None
            time.sleep(0.02)
        assert list(temporary.glob("gpuledger-job-*"))
        running.terminate()
        assert running.wait() == -signal.SIGTERM
    assert not list(temporary.glob("gpuledger-*"))
