"""Measures the GPU memory that NCCL takes for each communicator and each kind of collective.

Each scenario runs in processes of its own, one for each GPU, forked after torch was imported and before CUDA is used. A
scenario is a list of steps such as ``all_reduce`` on the default group or on a new group. Before the first step each
process has used its GPU, and its allocator has what the collectives need. What the GPU then has less after a step is
that step's.

Usage: python bench/memory/nccl_memory.py --out bench/memory/results/h200/nccl_memory_2.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

MIB = 1 << 20
SCENARIOS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("all_reduce", "all_reduce"),
    "all_reduce_large": ("all_reduce:256", "all_reduce:256"),
    "all_gather": ("all_gather",),
    "reduce_scatter": ("reduce_scatter",),
    "broadcast": ("broadcast",),
    "all_to_all": ("all_to_all",),
    "send": ("send", "send_back", "all_reduce"),
    "batch": ("batch", "all_reduce"),
    "fsdp": ("all_gather", "reduce_scatter", "all_reduce", "broadcast"),
    "bfloat16": ("all_gather:1:bfloat16", "reduce_scatter:1:bfloat16", "all_reduce:1:bfloat16"),
    "groups": ("all_reduce", "new_group", "all_reduce", "new_group", "all_reduce", "new_group", "all_reduce"),
    "groups_all_gather": ("all_gather", "new_group", "all_gather", "new_group", "reduce_scatter"),
    "groups_of_one": ("all_reduce", "group_of_one", "all_reduce"),
    "other_group_only": ("new_group", "all_reduce"),
    "given_device": ("init", "all_reduce"),
    "barrier": ("barrier", "all_reduce"),
}
"""``NAME:MIB:DTYPE``: size and type of the message; 1 MiB of float32 if not said."""


def used_bytes() -> int:
    """Return the bytes of the GPU that are in use outside the allocator."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def act(step: str, rank: int, size: int, group: Any) -> Any:
    """Do one step, and return the group of the next one."""
    name, mib, dtype = (*step.split(":"), *("", "1", "float32")[step.count(":") + 1 :])
    if name in ("new_group", "group_of_one"):
        found = [
            dist.new_group(ranks)
            for ranks in ([list(range(size))] if name == "new_group" else [[one] for one in range(size)])
        ]
        return found[rank if name == "group_of_one" else 0]
    kind = getattr(torch, dtype)
    n = int(mib) * MIB // kind.itemsize
    members = dist.get_world_size(group)
    x = torch.ones(n, dtype=kind, device="cuda")
    y = torch.empty(n * members, dtype=kind, device="cuda")
    other = (rank + 1) % size
    if name == "all_reduce":
        dist.all_reduce(x, group=group)
    elif name == "all_gather":
        dist.all_gather_into_tensor(y, x, group=group)
    elif name == "reduce_scatter":
        dist.reduce_scatter_tensor(x, y, group=group)
    elif name == "broadcast":
        dist.broadcast(x, 0, group=group)
    elif name == "all_to_all":
        dist.all_to_all_single(y[:n], x, group=group)
    elif name == "barrier":
        dist.barrier(group=group)
    elif name in ("send", "send_back"):
        if (rank % 2 == 0) == (name == "send"):
            dist.send(x, rank ^ 1, group=group)
        else:
            dist.recv(x, rank ^ 1, group=group)
    elif name == "batch":
        calls = [dist.P2POp(dist.isend, x, other, group), dist.P2POp(dist.irecv, y[:n], (rank - 1) % size, group)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
    return group


def be_rank(rank: int, size: int, steps: tuple[str, ...], directory: Path) -> None:
    """Take the steps of one rank, and write what each of them took."""
    torch.cuda.set_device(rank)
    x = torch.ones(1024, 1024, device="cuda")
    (x @ x).sum().item()
    del x
    for kind in (torch.float32, torch.bfloat16):
        torch.ones(8, dtype=kind, device="cuda").sum().item()
    found = []
    before = used_bytes()
    given = {"device_id": torch.device("cuda", rank)} if steps[0] == "init" else {}
    dist.init_process_group("nccl", init_method=f"file://{directory}/store", rank=rank, world_size=size, **given)
    group = None
    for step in ("init", *steps[bool(given) :]):
        if step != "init":
            group = act(step, rank, size, group)
        after = used_bytes()
        found.append({"step": step, "gained_mib": (after - before) / MIB})
        before = after
    (directory / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")


def run(steps: tuple[str, ...], size: int, limit_s: float = 60.0) -> Any:
    """Return what each rank gained in each step, or the error."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        children = []
        for rank in range(size):
            child = os.fork()
            if not child:
                try:
                    be_rank(rank, size, steps, directory)
                except BaseException:
                    (directory / "error").write_text(traceback.format_exc(), encoding="utf-8")
                finally:
                    os._exit(0)
            children.append(child)
        until_s = time.monotonic() + limit_s
        while children and time.monotonic() < until_s and not (directory / "error").exists():
            children = [one for one in children if not os.waitpid(one, os.WNOHANG)[0]]
            time.sleep(0.02)
        for one in children:
            os.kill(one, 9)
            os.waitpid(one, 0)
        if (directory / "error").exists():
            return {"error": (directory / "error").read_text(encoding="utf-8")[-1500:]}
        files = [directory / f"{rank}.json" for rank in range(size)]
        return [json.loads(one.read_text(encoding="utf-8")) if one.exists() else None for one in files]


def main() -> None:
    """Measure the scenarios and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    given = parser.parse_args()
    results: dict[str, Any] = {"ranks": given.ranks, "scenarios": {}}
    for name in given.scenarios.split(","):
        found = results["scenarios"][name] = run(SCENARIOS[name], given.ranks)
        print(
            name,
            found
            if isinstance(found, dict)
            else [[(s["step"], round(s["gained_mib"])) for s in one or ()] for one in found],
            flush=True,
        )
    results = {"environment": describe_environment("cuda"), "nccl": list(torch.cuda.nccl.version()), **results}
    write_results(given.out, results)


if __name__ == "__main__":
    main()
