"""Runs programs that end for lack of host memory, or by SIGKILL, and compares the first sentence with the cause.

Each program runs bare, and with `gpuledger run`, in a cgroup of its own that has a limit, under `ulimit -v`, or with
neither. Needs Linux and the right to make cgroups. Takes about two minutes.

Usage: python bench/memory/host_out_of_memory.py --out bench/memory/results/cpu/host_out_of_memory.json [--only NAME]
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from one_by_one import names_in_time, out_and_only

from gpuledger.processes.memory_groups import memory_groups

LIMIT_BYTES = 1500 << 20
TRAINING = """
import torch

model, kept = torch.nn.Linear(64, 64), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(rows=8):
    optimizer.zero_grad()
    model(torch.randn(rows, 64)).square().mean().backward()
    optimizer.step()


"""
LEAK = """
for step in range(400):
    train()
    kept.append(torch.ones(8 << 18))
"""
LARGER_STEP = """
for step in range(100):
    train()
train(rows=16 << 20)
"""
DATA_WORKER = """
class Leaking(torch.utils.data.Dataset):
    def __init__(self):
        self.kept = []

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        self.kept.append(torch.ones(8 << 18))
        return torch.zeros(8)


if __name__ == "__main__":
    for batch in torch.utils.data.DataLoader(Leaking(), batch_size=8, num_workers=1):
        train()
"""
LARGE_REQUEST = """
for step in range(30):
    train()
kept.append(torch.ones(8 << 40))
"""
FROM_OUTSIDE = """
import os, signal, subprocess, sys, time

for step in range(30):
    train()
kill = f"import os; os.kill({os.getpid()}, {int(signal.SIGKILL)})"
subprocess.run([sys.executable, "-c", kill])
time.sleep(60)
"""
PROGRAMS: dict[str, tuple[str, str, str | None]] = {
    "leak, limit of the cgroup": (LEAK, "cgroup", "host_killed"),
    "larger step, limit of the cgroup": (LARGER_STEP, "cgroup", "host_killed"),
    "leak in a data worker, limit of the cgroup": (DATA_WORKER, "cgroup", "host_killed"),
    "leak, ulimit -v": (LEAK, "ulimit", "host"),
    "one large request": (LARGE_REQUEST, "", "host"),
    "SIGKILL by another process": (FROM_OUTSIDE, "", None),
}
"""Name -> the program after :data:`TRAINING`, its limit, and the kind of the cause; None if it is not memory."""
NOT_MEMORY = "not by this machine's out-of-memory killer"


class Group:
    """A cgroup below that of this process, with a limit."""

    def __init__(self) -> None:
        above = memory_groups()[0]
        self.directory = above / f"bench-{os.getpid()}"
        self.directory.mkdir()
        is_first = (self.directory / "memory.limit_in_bytes").exists()
        name = "memory.limit_in_bytes" if is_first else "memory.max"
        (self.directory / name).write_text(str(LIMIT_BYTES))

    def enter(self) -> None:
        """Move the calling process into the group."""
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Remove the group, whose processes have ended."""
        self.directory.rmdir()


def under_ulimit() -> None:
    """Limit the address space of the calling process."""
    resource.setrlimit(resource.RLIMIT_AS, (2 * LIMIT_BYTES, resource.RLIM_INFINITY))


def measure(name: str, directory: Path) -> dict[str, Any]:
    """Return how a program ends bare, and what `show` says first about it."""
    body, limit, planted = PROGRAMS[name]
    (directory / "train.py").write_text(TRAINING + body)
    bare = ended([], limit, directory)
    recorded = ended(["-m", "gpuledger", "run", "-q", "--out", "train"], limit, directory)
    document = json.loads(
        subprocess.run(
            [sys.executable, "-m", "gpuledger", "show", "train", "--json"],
            **{"cwd": directory, "capture_output": True, "text": True, "check": True},
        ).stdout
    )
    causes = [one["cause"] for one in document["out_of_memory"]]
    kind = causes[0]["kind"] if causes else None
    notes = [note for note in document["notes"] if NOT_MEMORY in note]
    return {
        "planted": planted,
        "right": kind == planted and bool(notes) is (planted is None) and recorded.returncode == bare.returncode,
        "kind": kind,
        "sentence": causes[0]["sentence"] if causes else next(iter(notes), None),
        "signal": document["signal"],
        "status": [bare.returncode, recorded.returncode],
        "last_line": (bare.stderr.strip().splitlines() or [""])[-1],
    }


def ended(words: list[str], limit: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Return a finished run of ``train.py`` in ``directory``."""
    group = Group() if limit == "cgroup" else None
    enter: Callable[[], None] | None = group.enter if group is not None else under_ulimit if limit else None
    try:
        return subprocess.run(
            [sys.executable, *words, "train.py"],
            **{"cwd": directory, "capture_output": True, "text": True, "check": False, "preexec_fn": enter},
        )
    finally:
        if group is not None:
            group.remove()


def main() -> None:
    """Run every program and print a line for each."""
    arguments = out_and_only(__doc__, "program")
    results: dict[str, Any] = {}
    for name in names_in_time(PROGRAMS, arguments.only, 600):
        with tempfile.TemporaryDirectory() as directory:
            results[name] = measure(name, Path(directory))
        print(name, *results[name].values(), sep=" · ", flush=True)
        write_results(arguments.out, {"environment": describe_environment("cpu"), "programs": results})


if __name__ == "__main__":
    main()
