"""Runs programs that fail by fragmentation, and then under each setting of the allocator that `show` has judged.

Each program may use 4 GiB, and runs in processes of its own, forked after torch was imported and before CUDA is used.
First it is recorded with the default settings. If it runs out of memory, gpuledger's verdict on each other setting is
kept: does the failed request fit with it? Then the program runs with that setting, without gpuledger. A verdict is
right if it says whether that same request was served. Ends within 150 s.

Usage: python bench/memory/allocator_settings.py --out bench/memory/results/h200/allocator_settings.json
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from crash_programs import EACH_S, GIB, capacity
from environment import describe_environment, write_results
from one_by_one import names_in_time, out_and_only
from out_of_memory import run

from gpuledger.analyze.allocator.alloc_conf import CANDIDATES

MIB = 1 << 20
LIMIT_BYTES = 4 * GIB

Request = Callable[[int], torch.Tensor]


class Requests:
    """Allocates tensors, and counts those that were served."""

    def __init__(self) -> None:
        self.served = 0

    def __call__(self, size: int) -> torch.Tensor:
        """Return a tensor of ``size`` bytes."""
        tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.served += 1
        return tensor


def every_second_block(request: Request, size: int = 9 * MIB) -> None:
    """Every second block is freed, and then a third of the limit is requested."""
    blocks = [request(size) for _ in range(LIMIT_BYTES * 9 // 10 // max(size, 10 * MIB))]
    kept = blocks[::2]
    del blocks
    request(LIMIT_BYTES // 3)
    del kept


def runs_of_blocks(request: Request, size: int = 9 * MIB, length: int = 8) -> None:
    """Every second run of blocks is freed, and then a third of the limit is requested."""
    blocks = [request(size) for _ in range(LIMIT_BYTES * 9 // 10 // max(size, 10 * MIB))]
    kept = [block for place, block in enumerate(blocks) if place // length % 2]
    del blocks
    request(LIMIT_BYTES // 3)
    del kept


def growing_batches(request: Request, keeps: int = 12 * MIB) -> None:
    """Each batch is larger than the one before, and leaves a small tensor behind."""
    kept = []
    for step in range(60):
        batch = request(100 * MIB + 17 * MIB * step)
        del batch
        kept.append(request(keeps))


def drawn(seed: int, least: int, most: int, share: float, request: Request) -> None:
    """Tensors of random sizes replace each other at random, in up to ``share`` of the limit."""
    chance = random.Random(seed)
    alive: list[torch.Tensor] = []
    bytes_alive = 0
    for _ in range(3000):
        size = int(least * (most / least) ** chance.random())
        while bytes_alive + size > share * LIMIT_BYTES:
            bytes_alive -= alive.pop(chance.randrange(len(alive))).numel()
        alive.append(request(size))
        bytes_alive += size


PROGRAMS: dict[str, Callable[[Request], None]] = {
    "every second block of 9 MiB": every_second_block,
    "every second block of 40 MiB": partial(every_second_block, size=40 * MIB),
    "runs of 8 blocks of 9 MiB": runs_of_blocks,
    "runs of 4 blocks of 30 MiB": partial(runs_of_blocks, size=30 * MIB, length=4),
    "growing batches, 12 MiB kept": growing_batches,
    "growing batches, 3 MiB kept": partial(growing_batches, keeps=3 * MIB),
    **{
        f"random, seed {seed}: {least} to {most} MiB in {share:.0%}": partial(
            drawn, seed, least * MIB, most * MIB, share
        )
        for seed, (least, most, share) in enumerate(
            [(1, 600, 0.7), (1, 600, 0.8), (20, 400, 0.8), (20, 400, 0.9), (2, 60, 0.93), (11, 1500, 0.6)] * 2
        )
    },
}


def limited(program: Callable[[Request], None]) -> int | None:
    """Return how many requests were served before the first that failed; None if all were."""
    torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / capacity())
    requests = Requests()
    try:
        program(requests)
    except torch.OutOfMemoryError:
        return requests.served
    return None


def recorded(program: Callable[[Request], None], directory: Path) -> dict[str, Any]:
    """Return the failed request and the verdicts of a recorded program; called in its own process."""
    served: list[int | None] = []

    def failing() -> None:
        served.append(limited(program))
        if served[0] is not None:
            raise torch.OutOfMemoryError("raised again, so that the program ends with it")

    failing.__name__ = "program"
    return {**run(failing, directory), "served": served[0]}


def with_setting(program: Callable[[Request], None], alloc_conf: str) -> dict[str, Any]:
    """Return the failed request of a program with a setting; called in its own process."""
    torch.cuda.memory._set_allocator_settings(alloc_conf)
    return {"served": limited(program)}


def forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``work`` returns in a forked process, which is ended after :data:`EACH_S`."""
    with tempfile.NamedTemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            signal.alarm(EACH_S)
            try:
                Path(answer.name).write_text(json.dumps(work()))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        text = Path(answer.name).read_text()
    return json.loads(text) if text else {"lost": True}


def judge(program: Callable[[Request], None]) -> dict[str, Any]:
    """Return the verdicts on one program, and what happened with each setting."""
    with tempfile.TemporaryDirectory() as directory:
        found = forked(partial(recorded, program, Path(directory)))
    if found.get("served") is None:
        return {"failed": None if found.get("lost") else False}
    settings = {}
    for alloc_conf, verdict, note in found["verdicts"]:
        if alloc_conf in CANDIDATES and alloc_conf:
            real = forked(partial(with_setting, program, alloc_conf))
            if "served" not in real:
                settings[alloc_conf] = {"verdict": verdict, "note": note, "real": None}
                continue
            fits = real["served"] is None or real["served"] > found["served"]
            settings[alloc_conf] = {"verdict": verdict, "note": note, "real": fits, "ends": real["served"] is None}
    return {"failed": True, "request": found["served"], "sentence": found["sentence"], "settings": settings}


def counts(programs: dict[str, Any]) -> dict[str, int]:
    """Return how many verdicts agree with the real runs."""
    pairs = [one for found in programs.values() for one in found.get("settings", {}).values()]
    said = [(one["verdict"], one["real"]) for one in pairs if one["real"] is not None]
    return {
        "programs": len(programs),
        "failed": sum(bool(found["failed"]) for found in programs.values()),
        "verdicts": len(said),
        "right": sum(verdict is real for verdict, real in said),
        "said_fits_and_did_not": sum(verdict is True and not real for verdict, real in said),
        "said_does_not_fit_and_did": sum(verdict is False and real for verdict, real in said),
        "undecided": sum(verdict is None for verdict, _ in said),
    }


def main() -> None:
    """Run every program and print a line for each."""
    arguments = out_and_only(__doc__, "program")
    programs: dict[str, Any] = {}
    for name in names_in_time(PROGRAMS, arguments.only, 135):
        programs[name] = judge(PROGRAMS[name])
        settings = programs[name].get("settings", {})
        print(name, {conf: (one["verdict"], one["real"]) for conf, one in settings.items()}, flush=True)
        write_results(arguments.out, {"counts": counts(programs), "programs": programs})
    found = {"counts": counts(programs), "limit_bytes": LIMIT_BYTES, "programs": programs}
    write_results(arguments.out, {"environment": describe_environment("cuda"), **found})


if __name__ == "__main__":
    main()
