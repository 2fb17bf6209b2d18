"""Trainings on two ranks below the launchers that users start them with: torchrun, accelerate, mpirun, srun."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from launchers import LAUNCHERS, RANK_AND_WORLD, launch, launch_environment
from present import present
from programs import COMPILER_ASIDE, GPULEDGER, SHAPES_ASIDE, Ended, execute, manifest, write_script
from quick import quick_gpuledger, quick_python

from gpuledger.analyze.ranks.rank_set import build_rank_set
from gpuledger.analyze.view.view import build_view
from gpuledger.cli.main import main
from gpuledger.model.run import Run
from gpuledger.services.runs import load

pytestmark = pytest.mark.torch

TRAIN = """
import sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store-{sys.argv[2]}", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(7):
    optimizer.zero_grad()
    model(torch.ones(64 * (1 + rank), 16)).sum().backward()
    optimizer.step()
    dist.barrier()
if sys.argv[1] == "fails" and rank == 1:
    sys.exit(7)
if sys.argv[1] == "fails":
    time.sleep(1)
if sys.argv[1] == "waits":
    os.write(1, b"ready\\n")
    time.sleep(60)
os.write(1, f"rank {rank} of {world} trained\\n".encode())
time.sleep(0.3)
dist.destroy_process_group()
time.sleep(0.3)
"""
TRAINED = [b"rank 0 of 2 trained", b"rank 1 of 2 trained"]
INPUTS = [64 * 16 * 4, 128 * 16 * 4]


def recorded(launcher: str, place: Path, *words: str, options: tuple[str, ...] = ("-q",), restarts: int = 0) -> Ended:
    """Return how a launcher ended below ``gpuledger run --out two``."""
    program = str(write_script(place, RANK_AND_WORLD + TRAIN))
    command = launch(launcher, place, program, *words, restarts=restarts)
    return execute(
        [*quick_gpuledger(), "run", *options, "--out", "two", "--", *command], place, env=launch_environment()
    )


def ranks_of(run: Run) -> list[tuple[int, int, str | None, int | None]]:
    """Return the number, the number in the process group, the status and the steps of each rank."""
    told = [(rank.number, rank.manifest) for rank in run.ranks]
    return [(number, present(one.world).rank, one.status, one.steps_seen) for number, one in told]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_are_one_run(launcher: str, tmp_path: Path) -> None:
    chosen, kept = ("sample", [True, True]) if launcher == "torchrun" else ("1", [False, True])
    ended = recorded(launcher, tmp_path, "ends", "0", options=("-q", "--ranks", chosen))
    assert ended.status == 0, ended.stderr.decode()
    assert sorted(ended.stdout.splitlines()) == TRAINED
    run = load(tmp_path / "two.ledger")
    assert ranks_of(run) == [(0, 0, "closed", 7), (1, 1, "closed", 7)]
    assert run.manifest.notes == ()
    ranks = present(build_rank_set(run))
    assert ranks.problems == ()
    inputs = ranks.matrix[[one.name for one in ranks.categories].index("input")]
    assert list(inputs) == INPUTS
    assert [(rank.directory / "blocks").exists() for rank in run.ranks] == kept
    shown = CliRunner().invoke(main, ["show", str(run.path)]).output
    assert "2 ranks, CPU tensors" in shown


@pytest.mark.parametrize(("launcher", "status"), [("torchrun", 1), ("mpich", 7), ("openmpi", 7), ("srun", 7)])
def test_the_status_is_the_launchers_if_a_rank_fails(launcher: str, status: int, tmp_path: Path) -> None:
    assert recorded(launcher, tmp_path, "fails", "0").status == status
    run = load(tmp_path / "two.ledger")
    assert run.manifest.exit_status == status
    assert [(number, present(steps) >= 3) for number, _, _, steps in ranks_of(run)] == [(0, True), (1, True)]


ALONE = """
import sys, time
import torch
model = torch.nn.Linear(16, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(7):
    optimizer.zero_grad()
    model(torch.ones(64, 16)).sum().backward()
    optimizer.step()
open(f"ready-{sys.argv[2]}-{rank}", "w").close()
while not all(os.path.exists(f"ready-{sys.argv[2]}-{one}") for one in range(world)):
    time.sleep(0.01)
"""
"""A training without a process group: the ranks wait for each other once."""


def after_torchrun(place: Path, source: str) -> Run:
    """Return the run of two ranks of which one fails after its recorded steps. Its name is ``two``.

    On a busy machine, torchrun can read the status of its process before gpuledger does. The kernel keeps signals only,
    and only of processes that gpuledger has found while they ran.
    """
    write_script(place, SHAPES_ASIDE + COMPILER_ASIDE + RANK_AND_WORLD + source, "failing.py")
    torchrun = [quick_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    program = [sys.executable, "failing.py", "ends"]  # no fork: its status is that of the process
    command = [*quick_gpuledger(), "run", "-q", "--force", "--out", "two", "--", *torchrun, *program]
    for attempt in range(4):
        assert execute([*command, str(attempt)], place, env=launch_environment()).status == 1
        failed = present(build_rank_set(load(place / "two.ledger"))).failed
        if failed and failed[0].rank == 1 and failed[0].exit_status is not None:
            break
    return load(place / "two.ledger")


@pytest.mark.parametrize(("how", "said"), [("kill", "killed by SIGKILL"), ("exit", "exit status 7")])
def test_a_rank_that_fails_after_its_recorded_steps_is_named_first(how: str, said: str, tmp_path: Path) -> None:
    fails = {"kill": "os.kill(os.getpid(), 9)", "exit": "sys.exit(7)"}[how]
    alone = re.sub(r"torch.nn.parallel.DistributedDataParallel\((.*)\)", r"\1", TRAIN)  # it would ask the compiler
    source = alone.replace("if sys.argv[1] ==", f"if rank == 1: {fails}\ndist.barrier()\nif sys.argv[1] ==", 1)
    run = after_torchrun(tmp_path, source)
    problem, *_ = present(build_rank_set(run)).problems
    assert problem.startswith(f"Rank 1 failed first: {said}, after "), problem
    assert ". Rank 0 ended because of it: " in problem
    first, victim = present(build_rank_set(run)).failed
    assert (first.rank, first.is_first, victim.rank, victim.is_first) == (1, True, 0, False)
    assert (first.signal, first.exit_status) == {"kill": (9, 137), "exit": (None, 7)}[how]


def test_a_killed_rank_is_first_although_another_one_was_at_its_end_before(tmp_path: Path) -> None:
    exits = "import atexit, time\natexit.register(lambda: time.sleep(60 * (rank == 0)))\n"  # after the recording's end
    kills = "if rank == 1:\n    time.sleep(2)\n    os.kill(os.getpid(), 9)\n"
    run = after_torchrun(tmp_path, exits + ALONE + kills)
    problem, *_ = present(build_rank_set(run)).problems
    assert problem.startswith("Rank 1 failed first: killed by SIGKILL, after "), problem
    assert problem.endswith(". Rank 0 ended because of it: killed by SIGTERM."), problem


def test_ranks_that_torchrun_starts_again_come_in_order_after_the_others(tmp_path: Path) -> None:
    first = 'import os\nos.environ["AT"] = os.environ["TORCHELASTIC_RESTART_COUNT"]\n'
    again = 'import sys\nsys.argv[1:] = ["ends" if os.environ["AT"] == "1" else "fails", os.environ["AT"]]\n'
    write_script(tmp_path, first + RANK_AND_WORLD + again + TRAIN, "again.py")
    command = launch("torchrun", tmp_path, "again.py", restarts=1)
    ended = execute([*quick_gpuledger(), "run", "--out", "two", "--", *command], tmp_path, env=launch_environment())
    assert (ended.status, sorted(ended.stdout.splitlines())) == (0, TRAINED)
    run = load(tmp_path / "two.ledger")
    assert [(number, rank) for number, rank, _, _ in ranks_of(run)] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert sorted(run.manifest.notes) == [
        f"Rank {2 + rank} of this run is another process with RANK={rank}, after restart 1 by torchrun."
        for rank in range(2)
    ]


@pytest.mark.parametrize("launcher", ["torchrun", "mpich"])
def test_a_launcher_of_two_gpuledgers_makes_a_run_of_each_rank(launcher: str, tmp_path: Path) -> None:
    program = str(write_script(tmp_path, RANK_AND_WORLD + TRAIN))
    words = ("-m", "gpuledger", "run", "-q", "--out", "two", program, "ends", "0")
    ended = execute(launch(launcher, tmp_path, *words), tmp_path, env=launch_environment())
    assert (ended.status, sorted(ended.stdout.splitlines())) == (0, TRAINED), ended.stderr.decode()
    runs = [str(tmp_path / f"two-rank-{number}.ledger") for number in range(2)]
    assert [[rank.number for rank in load(run).ranks] for run in runs] == [[0], [1]]
    merged = CliRunner().invoke(main, ["merge", *runs, "--out", str(tmp_path / "two")])
    assert merged.exit_code == 0, merged.output
    assert ranks_of(load(tmp_path / "two.ledger")) == [(0, 0, "closed", 7), (1, 1, "closed", 7)]


def test_ranks_of_two_hosts_that_share_no_folder_are_merged(tmp_path: Path) -> None:
    source = RANK_AND_WORLD + TRAIN.replace("{os.getcwd()}/store", f"{tmp_path}/store")
    words = ("-m", "gpuledger", "run", "-q", "--out", "two", str(write_script(tmp_path, source)), "ends", "0")
    ended = execute(launch("srun", tmp_path, *words, hosts=2), tmp_path, env=launch_environment())
    assert ended.status == 0, ended.stderr.decode()
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} of 4 trained".encode() for rank in range(4)]
    hosts = [tmp_path / f"host-{host}" for host in range(2)]
    found = [[path.name for path in sorted(host.glob("*.ledger"))] for host in hosts]
    assert found == [[f"two-rank-{rank}.ledger" for rank in ranks] for ranks in ((0, 1), (2, 3))]
    alone = build_view(load(hosts[1] / "two-rank-3.ledger")).problems
    assert alone[0].startswith("Ranks 0, 1 and 2 of 4 have no recording.")
    merged = CliRunner().invoke(main, ["merge", *map(str, hosts), "--out", str(tmp_path / "all")])
    assert merged.exit_code == 0, merged.output
    run = load(tmp_path / "all.ledger")
    assert ranks_of(run) == [(rank, rank, "closed", 7) for rank in range(4)]
    ranks = present(build_rank_set(run))
    assert ranks.problems == ()
    inputs = ranks.matrix[[one.name for one in ranks.categories].index("input")]
    assert list(inputs) == [64 * (1 + rank) * 16 * 4 for rank in range(4)]


def test_processes_without_a_launchers_number_have_that_of_their_process_group(tmp_path: Path) -> None:
    own = "import os, sys\nrank, world = int(sys.argv[3]), 2\n"
    write_script(tmp_path, own + TRAIN, "own.py")
    started = f"{quick_python()} own.py ends 0 1 & sleep 1; {quick_python()} own.py ends 0 0; wait"
    command = [*quick_gpuledger(), "run", "-q", "--out", "two", "--", "sh", "-c", started]
    ended = execute(command, tmp_path, env=launch_environment())
    assert (ended.status, sorted(ended.stdout.splitlines())) == (0, TRAINED), ended.stderr.decode()
    run = load(tmp_path / "two.ledger")
    assert ranks_of(run) == [(0, 0, "closed", 7), (1, 1, "closed", 7)]
    ranks = present(build_rank_set(run))
    assert list(ranks.matrix[[one.name for one in ranks.categories].index("input")]) == INPUTS


RECORDS_ITSELF = """
import torch
import torch.distributed as dist
import gpuledger
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store-{sys.argv[2]}", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 8))
def train():
    for step in range(3):
        model(torch.ones(64 * (1 + rank), 16)).sum().backward()
if sys.argv[1] == "all" or rank == 0:
    with gpuledger.record(out="two") as recording:
        train()
    assert recording.recorded_by or recording.peak_allocated_bytes > 64 * (1 + rank) * 16 * 4
else:
    train()
dist.barrier()
os.write(1, f"rank {rank} of {world} trained\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("is_outer", [False, True], ids=["alone", "below gpuledger run"])
def test_ranks_that_record_themselves_join_one_run(is_outer: bool, tmp_path: Path) -> None:
    write_script(tmp_path, "import sys\n" + RANK_AND_WORLD + RECORDS_ITSELF, "own.py")
    outer = [*quick_gpuledger(), "run", "-q", "--out", "outer", "--"] if is_outer else []
    ended = execute([*outer, *launch("torchrun", tmp_path, "own.py", "all", "0")], tmp_path, env=launch_environment())
    assert (ended.status, sorted(ended.stdout.splitlines())) == (0, TRAINED), ended.stderr.decode()
    run = load(tmp_path / ("outer.ledger" if is_outer else "two.ledger"))
    assert [path.name for path in tmp_path.glob("*.ledger")] == [run.path.name]
    assert [(number, rank) for number, rank, _, _ in ranks_of(run)] == [(0, 0), (1, 1)]
    assert run.manifest.status == "complete"
    ranks = present(build_rank_set(run))
    assert list(ranks.matrix[[one.name for one in ranks.categories].index("input")]) == INPUTS


def test_rank_0_that_records_alone_keeps_its_name_and_an_older_run_is_refused(tmp_path: Path) -> None:
    write_script(tmp_path, "import sys\n" + RANK_AND_WORLD + RECORDS_ITSELF, "own.py")
    ended = execute(launch("torchrun", tmp_path, "own.py", "rank 0", "0"), tmp_path, env=launch_environment())
    assert (ended.status, sorted(ended.stdout.splitlines())) == (0, TRAINED), ended.stderr.decode()
    assert [rank.number for rank in load(tmp_path / "two.ledger").ranks] == [0]
    again = execute(launch("torchrun", tmp_path, "own.py", "all", "1"), tmp_path, env=launch_environment())
    assert again.status == 1
    assert b"two.ledger: already exists" in again.stderr
    assert [rank.number for rank in load(tmp_path / "two.ledger").ranks] == [0]


@pytest.mark.parametrize(
    ("launcher", "number"),
    [("torchrun", signal.SIGINT), ("mpich", signal.SIGINT), ("openmpi", signal.SIGTERM), ("srun", signal.SIGTERM)],
)
def test_an_interrupted_launcher_leaves_both_ranks(launcher: str, number: signal.Signals, tmp_path: Path) -> None:
    program = str(write_script(tmp_path, RANK_AND_WORLD + TRAIN))
    command = launch(launcher, tmp_path, program, "waits", "0", is_signalled=True)
    words = [*GPULEDGER, "run", "-q", "--out", "two", "--", *command]
    environment = launch_environment()
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert [job.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
        job.send_signal(number)
        _, said = job.communicate(timeout=600)
    run = load(tmp_path / "two.ledger")
    assert job.returncode == run.manifest.exit_status != 0, said
    assert [(rank, present(steps) >= 3) for rank, _, _, steps in ranks_of(run)] == [(0, True), (1, True)]
    assert manifest(run.path)["status"] == "complete"
    ranks = present(build_rank_set(run))
    assert ranks.lines[1].rank == 1
    assert [one.rank for one in ranks.failed if one.is_first] == []
