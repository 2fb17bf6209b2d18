"""``gpuledger run`` on whole programs: what is recorded, what is said, and what the manifest keeps."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import quick
from present import present
from programs import TRAIN, TRAIN_WITH_COMPILER, Ended, bare, manifest, recorded, write_script

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.services.runs import load

YARDSTICK = "import asyncio, concurrent.futures, email, http.server, logging.config, multiprocessing.pool, sqlite3, ssl"
START_UP_LIMIT = 3.0
"""How many times the processor time of these imports the start may take, because machines differ in speed."""


@pytest.mark.torch
def test_training_is_recorded_and_told_on_stderr(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN_WITH_COMPILER + "for _ in range(5): print(step().item() > 0)")
    ended = quick.recorded(["train.py"], tmp_path, options=("--devices", "cpu"))
    assert (ended.status, ended.stdout) == (0, b"True\n" * 5)
    lines = ended.stderr.decode().splitlines()
    start = "gpuledger: recording to train.ledger, CPU tensors (--devices cpu)"
    assert lines[0] == start
    assert lines[1].startswith("Peak memory ")
    assert lines[-2].startswith("Next  gpuledger show ")
    rank = load(tmp_path / "train.ledger").rank(0)
    assert present(rank.manifest.window).to_json() == {"first_step": 1, "last_step": 3, "asked": [1, 3]}
    breakdown = break_down(rank, find_peak(rank))
    assert sum(account.bytes for account in breakdown.accounts) == breakdown.allocated_bytes > 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("source", "steps"),
    [
        (TRAIN + "step()", 1),
        ("import torch\nmodel = torch.nn.Linear(16, 1)\nwith torch.no_grad(): model(torch.ones(8, 16))", 1),
        (TRAIN + "model(torch.ones(8, 16)).sum().backward()", 0),
        ("import torch\nkept = torch.ones(1000)", 0),
    ],
    ids=["one update", "one forward", "no update", "no module"],
)
def test_a_short_program_is_a_complete_run_and_quiet_says_nothing(source: str, steps: int, tmp_path: Path) -> None:
    write_script(tmp_path, source)
    assert quick.recorded(["train.py"], tmp_path, options=("-q",)) == Ended(0, b"", b"")
    rank = load(tmp_path / "train.ledger").rank(0)
    assert (rank.manifest.status, rank.manifest.steps_seen) == ("closed", steps)
    assert find_peak(rank).index >= 0


@pytest.mark.torch
def test_a_window_that_is_not_reached_is_said(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + "step(); step()\nexit(3)")
    ended = quick.recorded(["train.py"], tmp_path, options=("--steps", "10:12"))
    assert ended.status == 3
    assert b"steps 10 to 12 were not reached: the program ended after 2 steps" in ended.stderr


@pytest.mark.torch
def test_torch_imported_and_not_used(tmp_path: Path) -> None:
    write_script(tmp_path, "import torch\nprint('ran')")
    ended = quick.recorded(["train.py"], tmp_path, options=())
    assert (ended.status, ended.stdout) == (0, b"ran\n")
    assert b"steps 1 to 3 were not reached" in ended.stderr


def test_a_program_without_torch(tmp_path: Path) -> None:
    write_script(tmp_path, "print('ran')")
    ended = quick.recorded(["train.py"], tmp_path, options=("--devices", "cpu"))
    assert (ended.status, ended.stdout) == (0, b"ran\n")
    lines = ended.stderr.decode().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("gpuledger: nothing was recorded. No PyTorch process wrote a recording")


def test_starting_costs_little(tmp_path: Path) -> None:
    write_script(tmp_path, "")
    write_script(tmp_path, YARDSTICK, "yardstick.py")

    def used_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    def taken_s(run: Callable[[list[str], Path], Ended], program: str) -> float:
        """Return the processor time: the clock's depends on who else is at work."""
        before_s = used_s()
        assert run([program], tmp_path).status == 0
        return used_s() - before_s

    programs = ((bare, "train.py"), (recorded, "train.py"), (bare, "yardstick.py"))
    rounds = [[taken_s(run, program) for run, program in programs] for _ in range(3)]
    nothing_s, recorded_s, imports_s = (min(times) for times in zip(*rounds, strict=True))
    assert recorded_s - nothing_s < START_UP_LIMIT * (imports_s - nothing_s)


def test_the_manifest_says_what_was_run_and_why_so(tmp_path: Path) -> None:
    write_script(tmp_path, "print('ran')")
    (tmp_path / "pyproject.toml").write_text("[tool.gpuledger]\nstacks = false\nsteps = '7:8'\n")
    words = ["train.py", "--wandb-key", "hunter2", "--token=hunter2", "--lr", "0.1"]
    assert quick.recorded(words, tmp_path, options=("-q", "--steps", "2:4")).status == 0
    run = manifest(tmp_path / "train.ledger")
    assert run["command"][1:] == ["train.py", "--wandb-key", "***", "--token=***", "--lr", "0.1"]
    assert run["settings"]["steps"] == {"value": "2:4", "origin": "flag"}
    assert run["settings"]["stacks"] == {"value": False, "origin": "pyproject.toml"}
    assert run["settings"]["devices"] == {"value": "auto", "origin": "default"}
    assert run["started_ns"] < run["ended_ns"]
    everything = b"".join(place.read_bytes() for place in tmp_path.rglob("train.ledger/*") if place.is_file())
    assert b"hunter2" not in everything


@pytest.mark.torch
def test_settings_reach_the_program(tmp_path: Path) -> None:
    write_script(tmp_path, TRAIN + "for _ in range(6): step()")
    assert quick.recorded(["train.py"], tmp_path, options=("-q", "--no-stacks", "--steps", "2:4")).status == 0
    rank = load(tmp_path / "train.ledger").rank(0)
    window = present(rank.manifest.window)
    assert (window.first_step, window.last_step) == (2, 4)
    assert rank.table("stacks").num_rows == 0


def test_a_gpu_that_is_asked_for_and_not_found_is_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(tmp_path, "pass")
    announced = "CPU tensors, unless PyTorch finds a GPU (--devices cuda, but no GPU found)"
    for options, visible, what in (
        (("--devices", "cuda"), "", announced),
        (("--devices", "cuda"), "-1", announced),
        ((), "", "CPU tensors (no GPU found)"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        ended = recorded(["train.py"], tmp_path, options=options)
        line = ended.stderr.decode().splitlines()[0]
        assert line.startswith("gpuledger: recording to ")
        assert line.partition(", ")[2] == what
