"""Every Python process below a command that uses torch is a rank of one run; the others are left alone."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from present import present
from programs import TRAIN, environment, execute, manifest, recorded, write_script
from quick import bare as bare_quick
from quick import quick_python
from quick import recorded as recorded_quick

from gpuledger.collect.launch.bootstrap import bootstrap_directory
from gpuledger.services.runs import load

DISTRIBUTED = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(17):
    optimizer.zero_grad()
    model(torch.ones(64 * (1 + dist.get_rank()), 16)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
time.sleep(0.5)
"""
"""It waits at its end: gloo's threads hold tensors a little longer, and a Python that ends meanwhile aborts.

So it does without gpuledger too: one of 36 runs, torch 2.13.
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]


def ranks_of(run_directory: Path) -> list[tuple[int, str | None, int | None, int]]:
    """Return number, status, steps seen and largest input of every rank."""
    found = []
    for rank in load(run_directory).ranks:
        rows = rank.table("blocks", ("category", "requested_bytes")).to_pylist()
        inputs = [row["requested_bytes"] for row in rows if row["category"] == "input"]
        found.append((rank.number, rank.manifest.status, rank.manifest.steps_seen, max(inputs)))
    return found


TWO_RANKS = [(0, "closed", 16, 64 * 16 * 4), (1, "closed", 16, 128 * 16 * 4)]


@pytest.mark.torch
def test_torchrun_makes_two_ranks_and_none_of_its_own(tmp_path: Path) -> None:
    write_script(tmp_path, DISTRIBUTED)
    command = ["--", quick_python(), *TORCHRUN[1:]]
    ended = recorded_quick(command, tmp_path, options=("--out", "two"), env=environment(GPULEDGER_PASSES=""))
    assert (ended.status, ended.stdout) == (0, b"")
    to_the_end = [(number, status, 17, size) for number, status, _, size in TWO_RANKS]
    assert ranks_of(tmp_path / "two.ledger") == to_the_end
    assert re.search(rb"Peak memory .* of CPU tensors of rank 1, in ", ended.stderr)
    assert b"balanced: the highest peak is within 1.0 MiB of the mean" in ended.stderr
    assert b"not reached" not in ended.stderr


@pytest.mark.torch
def test_the_variable_alone_records_every_process(tmp_path: Path) -> None:
    write_script(tmp_path, DISTRIBUTED)
    env = environment(GPULEDGER_RUN="two", PYTHONPATH=bootstrap_directory(), GPULEDGER_STEPS="1:3", GPULEDGER_PASSES="")
    ended = execute([quick_python(), *TORCHRUN[1:]], tmp_path, env=env)
    assert ended.status == 0
    assert ranks_of(tmp_path / "two.ledger") == TWO_RANKS
    timed = [rank.manifest.time_steps for rank in load(tmp_path / "two.ledger").ranks]
    assert timed == [(4, 6), (4, 6)]
    run = manifest(tmp_path / "two.ledger")
    assert (run["status"], run["exit_status"], run["notes"]) == ("complete", None, [])
    assert run["settings"] == {"steps": {"value": "1:3", "origin": "environment"}}
    assert run["command"][-1] == "train.py"
    assert not list((tmp_path / "two.ledger").glob("manifest.*.json"))


@pytest.mark.torch
def test_the_variable_holds_where_a_program_changes_its_directory(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    write_script(tmp_path, "import os\nos.chdir('inside')\n" + TRAIN + "step(); step(); step()")
    env = environment(GPULEDGER_RUN="here", PYTHONPATH=bootstrap_directory())
    assert bare_quick(["train.py"], tmp_path, env=env).status == 0
    assert present(load(tmp_path / "here.ledger").rank(0).manifest.window).last_step == 3


@pytest.mark.torch
def test_a_shell_script_with_two_pythons(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + "step()")
    lines = f"""
    #!/bin/sh
    {quick_python()} train.py
    {quick_python()} train.py
    exit 9
    """
    script = write_script(tmp_path, lines.lstrip(), "both.sh")
    script.chmod(0o755)
    assert recorded_quick(["--", "./both.sh"], tmp_path).status == 9
    assert [rank.number for rank in load(tmp_path / "both.ledger").ranks] == [0, 1]


def test_the_bootstrap_prints_its_place() -> None:
    place = subprocess.check_output([sys.executable, "-m", "gpuledger.collect.launch.bootstrap"], text=True).strip()
    assert (Path(place) / "sitecustomize.py").is_file()
    assert place == bootstrap_directory()


def test_a_python_without_gpuledger_is_left_alone_and_named(tmp_path: Path) -> None:
    venv.create(tmp_path / "other", symlinks=True)
    python = str(tmp_path / "other" / "bin" / "python")
    write_script(tmp_path, "VALUE = 7", "torch.py")
    write_script(tmp_path, "import torch\nprint(torch.VALUE)")
    ended = recorded(["--", python, "train.py"], tmp_path, options=())
    assert (ended.status, ended.stdout) == (0, b"7\n")
    note = f"{python} was not recorded: ModuleNotFoundError: No module named 'gpuledger'"
    assert manifest(tmp_path / "python.ledger")["notes"] == [note]
    assert note.encode() in ended.stderr


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_ignores_the_path_is_not_seen_and_the_run_says_so(flag: str, tmp_path: Path) -> None:
    write_script(tmp_path, "print('ran')")
    ended = recorded(["--", sys.executable, flag, "train.py"], tmp_path, options=("--out", "run"))
    assert (ended.status, ended.stdout) == (0, b"ran\n")
    assert b"nothing was recorded. No PyTorch process wrote a recording" in ended.stderr
    assert "-I, -E or -S" in manifest(tmp_path / "run.ledger")["notes"][0]


@pytest.mark.torch
def test_a_run_inside_a_run_has_its_own_directory(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + "step()")
    inner = [quick_python(), "-m", "gpuledger", "run", "-q", "--out", "inner", "train.py"]
    assert recorded_quick(["--", *inner], tmp_path, options=("-q", "--out", "outer")).status == 0
    assert len(load(tmp_path / "inner.ledger").ranks) == 1
    assert load(tmp_path / "outer.ledger").ranks == ()


def test_the_command_installed_runs_too(tmp_path: Path) -> None:
    write_script(tmp_path, "print('ran')")
    command = Path(sysconfig.get_path("scripts")) / "gpuledger"
    assert execute([str(command), "run", "-q", "train.py"], tmp_path).stdout == b"ran\n"
