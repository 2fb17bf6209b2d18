"""Child jobs: an order goes in, an outcome comes back, and every way to end without one is said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import gpuledger
from gpuledger.errors import GpuLedgerError, InputError, NoDeviceError, UsageError
from gpuledger.processes.child_job import ChildJobError, run_child_job, run_program_job, serve_job

JOB = """
import os, sys, time
from gpuledger.errors import GpuLedgerError, NoDeviceError, UsageError
from gpuledger.processes.child_job import serve_job

class OwnError(UsageError):
    pass

def job(order, words):
    print("to stdout")
    print("to stderr", file=sys.stderr)
    {body}

sys.exit(serve_job(job))
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment in which the module ``some_job`` is found; the current directory is another one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def write_job(tmp_path: Path, body: str) -> None:
    (tmp_path / "some_job.py").write_text(JOB.format(body=body))


def run(environment: dict[str, str], **options: Any) -> dict[str, Any]:
    return run_child_job("some_job", {"n": 3, "ü": None}, ("a", "-b"), name="job", environment=environment, **options)


def test_an_order_goes_in_and_an_outcome_comes_back(tmp_path: Path, environment: dict[str, str]) -> None:
    write_job(tmp_path, "return {'order': order, 'words': words}")
    assert run(environment) == {"order": {"n": 3, "ü": None}, "words": ["a", "-b"]}


def test_a_jobs_temporary_files_are_where_its_parent_removes_them(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    write_job(
        tmp_path,
        "from gpuledger.processes.child_job import job_directory\n"
        "    os.mkdir(job_directory() / 'left')\n"
        "    return {'left': str(job_directory() / 'left')}",
    )
    left = Path(run(environment)["left"])
    assert left.is_relative_to(tmp_path / "here")
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("NoDeviceError('no card', hint='doctor')", NoDeviceError),
        ("UsageError('no card', hint='doctor')", UsageError),
        ("OwnError('no card', hint='doctor')", GpuLedgerError),
    ],
)
def test_an_error_of_the_job_is_raised_here(
    tmp_path: Path, environment: dict[str, str], raised: str, kind: type[GpuLedgerError]
) -> None:
    write_job(tmp_path, f"raise {raised}")
    with pytest.raises(GpuLedgerError) as found:
        run(environment)
    assert type(found.value) is kind
    assert (found.value.message, found.value.hint) == ("no card", "doctor")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("raise ValueError('broken')", 1, "job: its process ended early, with status 1: ValueError: broken"),
        ("os._exit(0)", 0, "job: its process ended early, with status 0: to stderr"),
        ("sys.stderr.flush(); os.kill(os.getpid(), 9)", -9, "job: its process ended early, with signal 9: to stderr"),
        ("return {'n': {1, 2}}", 1, "not JSON serializable"),
    ],
)
def test_a_child_that_ends_without_an_outcome_says_how(
    tmp_path: Path, environment: dict[str, str], body: str, status: int, message: str
) -> None:
    write_job(tmp_path, body)
    with pytest.raises(ChildJobError, match=re.escape(message)) as found:
        run(environment)
    assert found.value.status == status


def test_ctrl_c_ends_a_child_without_a_traceback(tmp_path: Path, environment: dict[str, str]) -> None:
    write_job(tmp_path, "raise KeyboardInterrupt")
    with pytest.raises(ChildJobError, match=r"signal 2: to stderr$") as found:
        run(environment)
    assert found.value.status == -signal.SIGINT


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path, environment: dict[str, str]) -> None:
    write_job(tmp_path, "time.sleep(600)")
    with pytest.raises(ChildJobError, match=r"^job: stopped after the time limit of 0 s$") as found:
        run(environment, limit_s=0.01)
    assert found.value.status is None


def test_output_goes_where_it_is_wanted(tmp_path: Path, environment: dict[str, str]) -> None:
    write_job(tmp_path, "return {}")
    with (tmp_path / "output").open("w") as stream:
        run(environment, output=stream)
    assert sorted((tmp_path / "output").read_text().splitlines()) == ["to stderr", "to stdout"]


def test_a_file_of_the_users_is_not_taken_for_a_module_unless_it_is_the_program(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    Path("queue.py").write_text("raise SystemExit('a file of the user was imported')")
    write_job(tmp_path, "return {'first': sys.path[0]}")
    assert run(environment)["first"] == str(tmp_path)
    Path("queue.py").unlink()
    assert run(environment, runs_program=True)["first"] == str(tmp_path / "here")


def test_a_program_that_ends_its_process_is_named(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(tmp_path, "os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    for program, name in ((["train.py", "-x"], "train.py"), (["-m", "train"], "train")):
        with pytest.raises(ChildJobError, match=rf"^{name}: its process ended early, with status 7: to stderr$"):
            run_program_job("some_job", {}, program, None)


def test_the_child_ends_with_its_parent(tmp_path: Path, environment: dict[str, str]) -> None:
    write_job(tmp_path, "os.mkfifo(order['fifo'] + '.made'); open(order['fifo'], 'w').write('here'); time.sleep(600)")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        "from gpuledger.processes.child_job import run_child_job\n"
        f"run_child_job('some_job', {{'fifo': {str(fifo)!r}}}, name='job')"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)
    assert fifo.read_text() == "here"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while _is_alive_in_session(parent.pid):
        time.sleep(0.01)


def _is_alive_in_session(session: int) -> bool:
    """Return whether a process of a session runs; a zombie does not."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, _group, its_session = place.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(its_session) == session and state != "Z":
            return True
    return False


def test_by_hand_the_outcome_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve_job(lambda order, words: {"order": order, "words": words}, []) == 0
    assert json.loads(capsys.readouterr().out) == {"order": {}, "words": []}

    def refuse(_order: dict[str, Any], _words: list[str]) -> dict[str, Any]:
        raise InputError("a.json: damaged")

    assert serve_job(refuse, []) == InputError.exit_code
    assert capsys.readouterr().err == "a.json: damaged\n"


def test_nothing_else_starts_a_python_child_for_a_job() -> None:
    """Beside jobs there are the sampler, which is talked to while it works, and `gpuledger live` beside a run."""
    package = Path(gpuledger.__file__).parent
    starts = re.compile(r"sys\.executable, .*\"-m\"(?!, \"gpuledger\", \"live\")")
    found = {place.name for place in package.rglob("*.py") if starts.search(place.read_text(encoding="utf-8"))}
    assert found == {"child_job.py", "watcher.py"}
