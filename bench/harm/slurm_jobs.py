"""Runs jobs of four ranks below Slurm, bare and recorded, and writes how they end and what is said of their ranks.

It starts Slurm for itself, with two nodes on this machine. It needs root and, on Debian, the packages ``slurmctld``,
``slurmd``, ``slurm-client`` and ``munge``. A bare job and a recorded one should end with the same status. The recorded
one should name the rank that failed first, and no rank if the job was ended from outside.

Usage: python bench/harm/slurm_jobs.py --out bench/harm/results/cpu/slurm_jobs.json
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.analyze.view.view import build_view
from gpuledger.services.merges.merging import merge
from gpuledger.services.runs import load

GPULEDGER = (sys.executable, "-m", "gpuledger")
FOUR = ("srun", "-K", "-N", "2", "-n", "4")
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
rank = int(os.environ.get("RANK", os.environ["SLURM_PROCID"]))
how, store, ready = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(7):
    optimizer.zero_grad()
    model(torch.ones(64 * (1 + rank), 16)).sum().backward()
    optimizer.step()
    dist.barrier()
if how == "raises" and rank == 1:
    raise ValueError("bad input")
if how == "is_killed" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
Path(f"{ready}.{rank}").touch()
time.sleep(0 if how == "ends" else 60)
dist.barrier()
dist.destroy_process_group()
"""
ON_HOST = """#!/bin/sh
mkdir -p "$JOB/host-$SLURM_NODEID" && cd "$JOB/host-$SLURM_NODEID" && exec "$@"
"""
"""Gives each node a working directory of its own, as on hosts that share no folder."""
CONFIGURATION = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
PATIENCE_S = 120.0


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def slurm(place: Path) -> Iterator[dict[str, str]]:
    """Start Slurm with two nodes; give the environment of its commands."""
    configuration, key = place / "slurm.conf", place / "munge.key"
    text = CONFIGURATION.format(host=socket.gethostname().partition(".")[0], place=place, ports=free_ports(3))
    configuration.write_text(text, encoding="utf-8")
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(configuration), "GLOO_SOCKET_IFNAME": "lo"}
    munge = [f"--{name}-file={place}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={place}/munge.socket", *munge],
        ["slurmctld", "-D", "-f", str(configuration)],
        *(["slurmd", "-D", "-f", str(configuration), "-N", f"node{number}"] for number in range(2)),
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            daemons.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
            time.sleep(1)
        subprocess.run([*FOUR, "true"], env=environment, check=True, timeout=60)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def job(
    place: Path, environment: Mapping[str, str], command: Sequence[str], how: str, end: str = ""
) -> tuple[int, list[str]]:
    """Return the exit status of a job and the last lines of its errors.

    Args:
        place: Its new working directory.
        environment: That of Slurm's commands.
        command: What starts the program.
        how: What the program does.
        end: ``signal`` sends SIGTERM to the command when all ranks wait, ``scancel`` cancels the job then.
    """
    place.mkdir()
    (place / "program.py").write_text(PROGRAM, encoding="utf-8")
    (place / "on_host").write_text(ON_HOST, encoding="utf-8")
    (place / "on_host").chmod(0o755)
    words = [*command, str(place / "program.py"), how, str(place / "store"), str(place / "ready")]
    with (place / "errors").open("w+") as errors:
        process = subprocess.Popen(
            words, cwd=place, env={**environment, "JOB": str(place)}, stdout=errors, stderr=errors
        )
        until = time.monotonic() + PATIENCE_S
        while end and len(list(place.glob("ready.*"))) < 4 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if end == "signal":
            process.send_signal(signal.SIGTERM)
        if end == "scancel":
            subprocess.run(["scancel", "--state=RUNNING", "--user=root"], env=environment, check=True)
        status = process.wait(PATIENCE_S)
        errors.seek(0)
        return status, errors.read().splitlines()[-5:]


def said_of(run: str | Path) -> dict[str, Any]:
    """Return the ranks of a run, and what is said first of those that failed."""
    found = load(run)
    return {
        "ranks": [[rank.number, rank.manifest.world and rank.manifest.world.rank] for rank in found.ranks],
        "problems": list(build_view(found).problems),
    }


def in_one_run(place: Path, environment: Mapping[str, str], how: str, end: str = "") -> dict[str, Any]:
    """Return how one job ends bare and below one ``gpuledger run``, and what is said of its ranks."""
    name = end or how
    bare, _ = job(place / f"{name}-bare", environment, [*FOUR, sys.executable], how, end)
    launched = [*GPULEDGER, "run", "-q", "--out", "job", "--", *FOUR, sys.executable]
    recorded, errors = job(place / name, environment, launched, how, end)
    run = said_of(place / name / "job.ledger")
    return {"bare_status": bare, "status": recorded, "is_equal": bare == recorded, **run, "errors": errors}


def on_each_host(place: Path, environment: Mapping[str, str], *, torchrun: bool) -> dict[str, Any]:
    """Return what is said of the ranks of hosts that share no folder, after their runs were merged.

    Args:
        place: Gets the job's directory.
        environment: That of Slurm's commands.
        torchrun: Whether srun starts a torchrun on each host. Otherwise it starts each rank.
    """
    folder = place / f"hosts-{'torchrun' if torchrun else 'srun'}"
    recorded = [*GPULEDGER, "run", "-q", "--out", "job"]
    command = [*FOUR, str(folder / "on_host"), *recorded]
    if torchrun:
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_ports(1)[0]}"]
        start = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", *meet]
        command = ["srun", "-N", "2", "-n", "2", str(folder / "on_host"), *recorded, "--", *start]
    status, errors = job(folder, environment, command, "ends")
    hosts = [str(folder / f"host-{number}") for number in range(2)]
    runs = sorted(path.relative_to(folder).as_posix() for path in folder.glob("host-*/*.ledger"))
    merged = merge(hosts, str(folder / "all"))
    return {"status": status, "runs": runs, **said_of(merged.path), "errors": errors}


def main() -> None:
    """Run all jobs and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, slurm(Path(directory)) as environment:
        place = Path(directory)
        version = subprocess.check_output(["srun", "--version"], env=environment, text=True).strip()
        jobs = {
            "ends": in_one_run(place, environment, "ends"),
            "raises": in_one_run(place, environment, "raises"),
            "is_killed": in_one_run(place, environment, "is_killed"),
            "signal_to_the_launcher": in_one_run(place, environment, "waits", "signal"),
            "scancel": in_one_run(place, environment, "waits", "scancel"),
            "each_rank_on_its_host": on_each_host(place, environment, torchrun=False),
            "torchrun_on_each_host": on_each_host(place, environment, torchrun=True),
        }
    write_results(given.out, {"environment": describe_environment("cpu"), "slurm": version, "jobs": jobs})


if __name__ == "__main__":
    main()
