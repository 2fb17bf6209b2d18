"""Ranks are claimed by making a directory, so that no two processes can have the same one."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from gpuledger.collect.launch.ranks import claim_rank, name_of_process
from gpuledger.model.run import read_run

OTHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", *itertools.chain(*OTHERS)):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    place = tmp_path / "two.ledger"
    place.mkdir()
    (place / "manifest.json").write_text(json.dumps({"schema_version": 1}))
    return place


def test_without_a_launcher_the_first_free_number(run: Path) -> None:
    assert [claim_rank(run).name for _ in range(3)] == ["rank-0", "rank-1", "rank-2"]
    assert not (run / "notes").exists()


def test_the_launchers_rank(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert claim_rank(run).name == "rank-2"


def test_one_more_process_of_a_rank_comes_after_the_world_with_a_note(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert [claim_rank(run).name for _ in range(3)] == ["rank-2", "rank-4", "rank-5"]
    (note,) = (run / "notes").iterdir()
    assert note.read_text().splitlines() == [
        f"Rank {number} of this run is another process with RANK=2." for number in (4, 5)
    ]


@pytest.mark.parametrize(("rank", "number"), [("", 1), ("2", 4)])
def test_a_program_that_a_process_starts_again_is_said_to_be_the_same_process(
    rank: str, number: int, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a rank of its own, but no rank runs beside it."""
    if rank:
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("RANK", rank)
    imports = "import os, sys; from pathlib import Path; from gpuledger.collect.launch.ranks import claim_rank"
    claim = f"{imports}; claim_rank(Path({str(run)!r}))"
    again = f"{claim}; os.execv(sys.executable, [sys.executable, '-c', {claim!r}])"
    subprocess.run([sys.executable, "-c", again], check=True)
    (note,) = (run / "notes").iterdir()
    first = rank or "0"
    assert note.read_text() == (
        f"Rank {number} of this run is the process of rank {first}, which has started a program again with exec. "
        f"Rank {number} began when rank {first} ended.\n"
    )
    subprocess.run([sys.executable, "-c", claim], check=True)  # another process
    said = [line for one in (run / "notes").iterdir() for line in one.read_text().splitlines()]
    assert [line for line in said if "exec" in line] == note.read_text().splitlines()


@pytest.mark.parametrize(("rank", "world"), OTHERS)
def test_ranks_of_mpirun_and_srun(rank: str, world: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(world, "4")
    monkeypatch.setenv(rank, "2")
    assert [claim_rank(run).name for _ in range(2)] == ["rank-2", "rank-4"]
    (note,) = (run / "notes").iterdir()
    assert note.read_text() == f"Rank 4 of this run is another process with {rank}=2.\n"
    monkeypatch.setenv("RANK", "1")  # torchrun, started by srun on each host
    assert claim_rank(run).name == "rank-1"


def test_processes_that_torchrun_starts_again_are_in_order_after_the_first_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert claim_rank(run).name == "rank-2"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    assert claim_rank(run).name == "rank-14"
    (note,) = (run / "notes").iterdir()
    assert note.read_text() == "Rank 14 of this run is another process with RANK=2, after restart 3 by torchrun.\n"


def test_a_run_of_one_rank_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "train", "far/train.ledger", "s3://bucket/train/"
    assert [name_of_process(name) for name in names] == list(names)
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("PMI_RANK", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # of a torchrun around mpirun
    assert [name_of_process(name) for name in names] == ["train-rank-2", "far/train-rank-2", "s3://bucket/train-rank-2"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert name_of_process("train") == "train-rank-1-restart-1"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert name_of_process("train") == "train"


@pytest.mark.parametrize("tasks", ["", "1", "x", "0"])
def test_a_job_of_one_task_is_no_rank(tasks: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", tasks)
    assert [claim_rank(run).name for _ in range(2)] == ["rank-0", "rank-1"]
    assert not (run / "notes").exists()


@pytest.mark.parametrize("rank", ["", "-1", "x", "½"])
def test_a_rank_that_is_no_number_is_none(rank: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    assert claim_rank(run).name == "rank-0"


def test_many_at_once_begin_one_run_and_share_no_rank(tmp_path: Path) -> None:
    place = tmp_path / "new.ledger"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        claimed = pool.map(claim_rank, [place] * 12, chunksize=1)
    assert sorted(int(rank.name[5:]) for rank in claimed) == list(range(12))
    assert read_run(place).manifest.name == "new"
    assert sorted(entry.name for entry in place.glob("manifest*")) == ["manifest.json"]
