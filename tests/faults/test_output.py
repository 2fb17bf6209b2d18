"""Where the run goes: what is refused before the program starts, and what happens when it cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import quick
from programs import GPULEDGER, TRAIN, bare, environment, execute, manifest, recorded, write_script

LEAVES_A_MARK = "open('mark', 'a').write('x')\nprint('ran')"


def refused(directory: Path, *options: str, **env: str) -> str:
    """Return the message of a refusal, which comes before the program starts."""
    write_script(directory, LEAVES_A_MARK)
    before = sorted(directory.rglob("*"))
    ended = quick.recorded(["train.py"], directory, options, env=environment(**env))
    assert (ended.status, ended.stdout) == (2, b"")
    assert sorted(directory.rglob("*")) == before
    return ended.stderr.decode()


def test_an_existing_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.ledger").mkdir()
    message = refused(tmp_path, "--out", "one")
    assert message.startswith("gpuledger: error: one.ledger: already exists\n  hint: ")


@pytest.mark.parametrize("steps", ["x", "3:1", "0:2", "1:2:3", "-1:2", ":"])
def test_wrong_steps_are_refused(steps: str, tmp_path: Path) -> None:
    assert f"steps '{steps}'" in refused(tmp_path, f"--steps={steps}")


@pytest.mark.parametrize(
    ("options", "word"),
    [(["--stesp", "1:2"], "--stesp"), (["--devices", "tpu"], "tpu"), (["--out"], "train.py")],
    ids=["unknown option", "unknown device", "no program"],
)
def test_wrong_options_are_refused(options: list[str], word: str, tmp_path: Path) -> None:
    message = refused(tmp_path, *options)
    assert message.startswith("gpuledger: error: ")
    assert word in message


def test_a_wrong_variable_is_refused(tmp_path: Path) -> None:
    assert "GPULEDGER_STPES: unknown environment variable" in refused(tmp_path, GPULEDGER_STPES="1:2")


def test_a_wrong_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.gpuledger]\nstep = '1:2'\n")
    assert "[tool.gpuledger] step: unknown option" in refused(tmp_path)


def test_force_replaces_a_run_and_nothing_else(tmp_path: Path) -> None:
    write_script(tmp_path, LEAVES_A_MARK)
    assert quick.recorded(["train.py"], tmp_path, options=("--out", "one")).status == 0
    first = manifest(tmp_path / "one.ledger")
    assert quick.recorded(["train.py"], tmp_path, options=("--out", "one.ledger", "--force")).status == 0
    assert manifest(tmp_path / "one.ledger")["started_ns"] > first["started_ns"]
    (tmp_path / "two.ledger").mkdir()
    (tmp_path / "two.ledger" / "thesis.tex").write_text("years")
    ended = quick.recorded(["train.py"], tmp_path, options=("--out", "two", "--force"))
    assert (ended.status, ended.stdout) == (2, b"")
    assert (tmp_path / "two.ledger" / "thesis.tex").exists()


def test_names_are_numbered_also_when_runs_begin_at_once(tmp_path: Path) -> None:
    write_script(tmp_path, "print('ran')")
    command = [*GPULEDGER, "run", "-q", "train.py"]
    runs = [subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [run.wait(60) for run in runs] == [0] * 4
    names = ["train-2.ledger", "train-3.ledger", "train-4.ledger", "train.ledger"]
    assert sorted(place.name for place in tmp_path.glob("*.ledger")) == names
    assert [manifest(tmp_path / name)["status"] for name in names] == ["complete"] * 4


@pytest.mark.parametrize("out", ["/proc/run", "train.py/run", "broken"])
def test_where_nothing_can_be_written_the_program_runs_unrecorded(out: str, tmp_path: Path) -> None:
    write_script(tmp_path, "import os\nprint(os.environ.get('GPULEDGER_RUN'), os.environ.get('PYTHONPATH'))\nexit(4)")
    (tmp_path / "broken.ledger").symlink_to("train.py/run")
    ended = quick.recorded(["train.py"], tmp_path, options=("--out", out))
    assert (ended.status, ended.stdout) == (4, b"None None\n")
    assert ended.stderr.startswith(b"gpuledger: error: ")
    assert ended.stderr.endswith(b"the program runs without being recorded\n")


@pytest.mark.torch
def test_the_program_may_remove_its_run(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + "import shutil\nstep()\nshutil.rmtree('train.ledger')\nstep()\nexit(4)")
    ended = quick.recorded(["train.py"], tmp_path, options=())
    assert ended.status == 4
    assert ended.stderr.splitlines()[-1].startswith(b"gpuledger: error: train.ledger: ")


MOUNTABLE = ["unshare", "--user", "--map-root-user", "--mount"]
FILLS = (
    TRAIN
    + "import os\nstep()\nfill = open(os.path.join(os.environ['ON_DISK'], 'fill'), 'wb', buffering=0)\n"
    + (
        "while True:\n    try: fill.write(bytes(4096))\n    except OSError: break\n"
        "for _ in range(4): print(step().item() > 0)\nexit(4)"
    )
)


def can_mount() -> bool:
    """Return whether this machine lets a process have mounts of its own."""
    try:
        command = [*MOUNTABLE, "mount", "-t", "tmpfs", "none", "/mnt"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.torch
@pytest.mark.skipif(not can_mount(), reason="needs a mount of its own: unshare --user --mount is not allowed here")
def test_disk_full_in_training(tmp_path: Path) -> None:
    """A real file system of 1 MiB that the program fills itself after its first step."""
    write_script(tmp_path, FILLS)
    disk = tmp_path / "disk"
    disk.mkdir()
    inner = f"mount -t tmpfs -o size=1m none {disk} && exec {sys.executable} -m gpuledger run --out {disk}/run train.py"
    env = environment(ON_DISK=str(disk))
    ended = execute([*MOUNTABLE, "sh", "-c", inner], tmp_path, env=env)
    assert (ended.status, ended.stdout) == (4, b"True\n" * 4)
    assert ended.stderr.splitlines()[-1].startswith(f"gpuledger: error: {disk}/run.ledger: ".encode())
    assert b"Traceback" not in ended.stderr


@pytest.mark.torch
def test_a_limit_on_file_size_ends_the_recording_and_not_the_program(tmp_path: Path) -> None:
    source = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + TRAIN
    source += "step()\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\nfor _ in range(4): step()\nexit(4)"
    write_script(tmp_path, source)
    ended = quick.recorded(["train.py"], tmp_path, options=())
    assert (ended.status, ended.stdout) == (4, b"")
    assert manifest(tmp_path / "train.ledger" / "rank-0")["status"] == "cut off"


def test_stderr_nobody_reads(tmp_path: Path) -> None:
    write_script(tmp_path, "print('ran')\nexit(4)")
    reading, writing = os.pipe()
    os.close(reading)
    command = [*GPULEDGER, "run", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=writing, check=False)
    os.close(writing)
    assert (done.returncode, done.stdout) == (4, b"ran\n")


def test_stdout_and_stderr_closed(tmp_path: Path) -> None:
    write_script(tmp_path, "exit(4)")
    ended = execute(["sh", "-c", f"exec {sys.executable} -m gpuledger run train.py >&- 2>&-"], tmp_path)
    assert ended.status == bare(["train.py"], tmp_path).status == 4


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [("no-such-command", 127, b"No such file"), ("./data.txt", 126, b"Permission denied"), ("./odd", 126, b"format")],
)
def test_a_command_that_does_not_start(command: str, status: int, words: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("text")
    (tmp_path / "odd").write_bytes(b"\x00not a program")
    (tmp_path / "odd").chmod(0o755)
    ended = recorded(["--", command], tmp_path)
    assert ended.status == status
    assert words in ended.stderr
    assert not list(tmp_path.glob("*.ledger"))


def test_nothing_to_run(tmp_path: Path) -> None:
    for words in ([], ["--"], ["-m"]):
        ended = quick.recorded(words, tmp_path)
        assert ended.status == 2
        assert b"no program given" in ended.stderr
