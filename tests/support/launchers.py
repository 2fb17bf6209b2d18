"""The launchers that users start distributed trainings with: two processes on this machine, on the CPU."""

from __future__ import annotations

import os
import sys
from importlib.metadata import distribution
from pathlib import Path

from programs import environment, write_script
from quick import quick_python

RANK_AND_WORLD = """
import os
VARIABLES = (
    ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
rank, world = next((int(os.environ[name]), int(os.environ[size])) for name, size in VARIABLES if name in os.environ)
"""
"""How programs find their rank, whatever has launched them."""

_SRUN = """
import os, signal, subprocess, sys
hosts, (command, *words) = int(sys.argv[1]), sys.argv[2:]
def task(number):
    host, local = divmod(number, 2)
    place = os.path.abspath(f"host-{host}" if hosts > 1 else ".")
    os.makedirs(place, exist_ok=True)
    of_task = {"PROCID": number, "NODEID": host, "LOCALID": local, "JOB_ID": 1, "STEP_ID": 0, "NNODES": hosts}
    of_job = {"NTASKS": 2 * hosts, "STEP_NUM_TASKS": 2 * hosts}
    slurm = {f"SLURM_{name}": str(value) for name, value in {**of_task, **of_job}.items()}
    return subprocess.Popen([command, *words], env={**os.environ, **slurm}, cwd=place)
tasks = [task(number) for number in range(2 * hosts)]
signal.signal(signal.SIGTERM, lambda *_: [one.kill() for one in tasks])
sys.exit(max(status if status >= 0 else 128 - status for status in [one.wait() for one in tasks]))
"""
"""Starts two tasks on each host as ``srun`` of Slurm 22.05 does: their variables, its status, and what SIGTERM does.

Each of several hosts has a folder of its own, which is its tasks' working directory.
"""

_OWN_STREAMS = """#!{python} -IS
import os, sys
os.closerange(3, 256)
os.execv({quick!r}, [{quick!r}, *sys.argv[1:]])
"""
"""Drops a launcher's own files: :func:`quick.quick_python` takes a process for a fresh one that has others."""

KEEPS_STATUS = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2]) >= (6, 15)
"""Whether this kernel tells the status of a process after its parent process has read it."""
LAUNCHERS = ("torchrun", "accelerate", "mpich", "openmpi", "srun")


def launch(
    launcher: str, place: Path, *words: str, restarts: int = 0, is_signalled: bool = False, hosts: int = 1
) -> list[str]:
    """Return the command that starts ``python WORDS`` twice; ``place`` gets what the launcher needs.

    Only srun starts it on several ``hosts``, twice on each.

    What is signalled is no fork, because the signal would reach only the command that waits for it.
    """
    if launcher == "torchrun":
        own = f"-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts {restarts}".split()
        start = [sys.executable, *own, "--no-python", quick_python()] if is_signalled else [quick_python(), *own]
        return [*start, *words]
    if launcher == "accelerate":
        told = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
        return [quick_python(), "-m", "accelerate.commands.launch", *told.split(), "--main_process_port", "0", *words]
    python = str(write_script(place, _OWN_STREAMS.format(python=sys.executable, quick=quick_python()), "python"))
    Path(python).chmod(0o755)
    if launcher == "srun":
        return [sys.executable, "-S", str(write_script(place, _SRUN, "srun.py")), str(hosts), python, *words]
    return [str(_mpiexec(launcher)), "-n", "2", python, *words]


def _mpiexec(package: str) -> Path:
    """Return a package's ``mpiexec``. Both packages have one of this name, so it is taken by its other name."""
    name = {"mpich": "bin/mpiexec.hydra", "openmpi": "bin/ompirun_wrapper"}[package]
    (place,) = (file for file in distribution(package).files or () if str(file).endswith(name))
    return Path(str(distribution(package).locate_file(place))).resolve()


def launch_environment(**changes: str) -> dict[str, str]:
    """Return the environment of a launcher, with what Open MPI requires from root, in a place of its own."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    prefix = str(_mpiexec("openmpi").parent.parent)
    return environment(OPAL_PREFIX=prefix, PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe", **root, **changes)
