"""Measures the processor time that observers take of a recorded step of sharded training. Needs no GPU.

Collectives are simulated and the model is narrow, so that a step is Python and small operators. Allocations are not
recorded: on a GPU that is done in C++. What remains is the time of gpuledger's own code, which is in every step of a
training on GPUs whose host is the slower one. Trainings with and without a recording take turns. Each figure is the
shortest step of a training. ``--src`` measures the source of another commit in the same way.

Usage: python bench/time/sharded_hooks.py --out bench/time/results/cpu/sharded_hooks.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(BENCH / "lib"))

from environment import describe_environment, write_results

SIZE = (16, 24, 4, 44, 64, 1, 4)
"""As the sizes of bench/lib/sharded_models.py; as many layers as the model with 1.3 billion weights."""
WAYS = ("fsdp", "fsdp_keep", "fsdp_bf16", "fsdp1", "hsdp", "tp")
STEPS, FIRST = 12, 2
RANKS = 4


class NoAllocations:
    """A recorder without allocations, whose counters take as much time as reading those of one GPU."""

    kind = "cuda-history"

    def __init__(self) -> None:
        from gpuledger.collect.attribution.tensor_observations import storage_place

        self.place_of = storage_place
        self.set_token = lambda _token: None

    def can_open(self) -> bool:
        """Return True."""
        return True

    def open(self, part: Any, living: object) -> None:
        """Write an empty snapshot."""
        from gpuledger.model.journal.journal import REASONS

        row = {"reason": REASONS.index("open"), "device_idx": [-1], "event_count": [0], "t_ns": time.time_ns()}
        part.add("snapshots", snapshot_id=0, **row)

    def counts(self, devices: Collection[int] | None = None) -> dict[int, tuple[int, int]]:
        """Return counts that do not change."""
        names = ("current", "peak", "allocated", "freed")
        for _ in range(2 if devices is None else 1):
            {pool: dict.fromkeys(names, 1 << 40) for pool in range(40)}
        return {-1: (1, 1)}

    def set_stacks(self, on: bool) -> None:
        """Do nothing."""

    def see_resized(self, tensors: object) -> None:
        """Do nothing."""

    def read_counters(self, *_: object) -> None:
        """Do nothing."""

    def drain(self, *_: object) -> None:
        """Do nothing."""

    def close(self, *_: object) -> bool:
        """Return True."""
        return True


def shortest_step_ms(way: str) -> float:
    """Return the processor time of the shortest step of a training, without the first ones."""
    import torch
    from sharded_models import build

    job, times_ms = build(way, "narrow", torch.device("cpu")), []
    for _ in range(STEPS):
        begin_s = time.process_time()
        job.step()
        job.optimizer.step()
        job.optimizer.zero_grad()
        times_ms.append((time.process_time() - begin_s) * 1e3)
    return min(times_ms[FIRST:])


def measure(ways: list[str], repeats: int) -> dict[str, Any]:
    """Return what each way takes with and without a recording, in turn."""
    import sharded_models
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import gpuledger
    from gpuledger.collect.session.recorders import ProcessRecorders

    ProcessRecorders.begin = lambda _self, session: session.adopt(NoAllocations(), None)  # type: ignore[method-assign]
    sharded_models.SIZES["narrow"] = SIZE
    torch.set_num_threads(1)
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    found: dict[str, Any] = {}
    for way in ways:
        pairs = []
        for _ in range(repeats + 1):
            bare_ms = shortest_step_ms(way)
            with tempfile.TemporaryDirectory() as place:
                with gpuledger.record(out=f"{place}/run", steps=(1, STEPS + 1), passes="memory") as recording:
                    recorded_ms = shortest_step_ms(way)
                notes = recording.run().rank(0).manifest.notes
                assert not notes, notes  # the recording did not end before the training
            pairs.append((bare_ms, recorded_ms))
        pairs = pairs[1:]  # the first one imports
        found[way] = {
            "bare_ms": statistics.median(bare for bare, _ in pairs),
            "recorded_ms": statistics.median(recorded for _, recorded in pairs),
            "added_ms": statistics.median(recorded - bare for bare, recorded in pairs),
            "pairs_ms": pairs,
        }
    return found


def main() -> None:
    """Measure this source, and another one if it is given, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--src", default="", help="src folder of another commit")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    if given.out is None:
        print(json.dumps(measure(given.ways.split(","), given.repeats)))
        return
    results = {**describe_environment("cpu"), "ranks": RANKS, "repeats": given.repeats, "size": SIZE}
    for name, src in (("this", str(BENCH.parent / "src")), ("other", given.src)):
        if src:
            command = [sys.executable, "-W", "ignore", __file__, "--ways", given.ways, "--repeats", str(given.repeats)]
            done = subprocess.run(
                command, env={"PYTHONPATH": src, "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True, check=True
            )
            results[name] = json.loads(done.stdout.splitlines()[-1])
    write_results(given.out, results)


if __name__ == "__main__":
    main()
