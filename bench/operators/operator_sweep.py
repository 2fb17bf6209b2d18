"""Measures times of operators that no model uses, in random order, as training data for predictions.

Usage: python bench/operators/operator_sweep.py --database h200.db --avoid pairs --lane 0/2 --seconds 500 --out FILE
       python bench/operators/operator_sweep.py --device cpu --smaller 200 --database cpu.db --seconds 20 --out FILE
Every record is committed at once: what is ended goes on with the same command. No operator is of a family of shapes
that a workload under --avoid has, so that models are judged by others than their own. With --lane several GPUs share
one list.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.ops.database.method import Method, Mode
from gpuledger.ops.database.operator_database import open_database
from gpuledger.ops.measure.chains import fill_around
from gpuledger.ops.measure.measure import Task, measure
from gpuledger.ops.measure.measured_device import find_device
from gpuledger.ops.measure.names import name_kernels
from gpuledger.ops.measure.plan import missing_tasks
from gpuledger.ops.predict.features import shape_family
from gpuledger.ops.predict.sweep import Grid, sweep
from gpuledger.ops.workloads.workload import SUFFIX, read_workload

NAMES_S = 0.012
"""What naming the kernels of one operator takes, about."""
CHANNELS = (48, 80, 96, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512, 576, 640, 768, 896, 1024)
ALONE = (96, 144, 160, 192, 224, 288, 320, 384, 448, 512, 576, 640, 768, 896, 1152, 1280, 1536)
WIDTHS = (128, 160, 192, 256, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 4096)


@dataclass(frozen=True)
class Part:
    """A sweep, and how many of its configurations are drawn."""

    operator: str
    count: int
    grid: Grid
    train: bool = False
    hot: bool = False


PARTS = (
    Part("conv2d", 400, Grid(sizes=(2, 3, 4, 5, 7, 8, 10, 14, 16), channels=CHANNELS[:14], kernel=(1, 3),
                             stride=(1, 2)), hot=True),
    Part("conv2d", 450, Grid(sizes=(7, 10, 14, 20, 28, 38, 56), channels=CHANNELS, kernel=(1, 3, 5, 7), stride=(1, 2),
                             bias=(0, 1))),
    Part("conv2d", 250, Grid(sizes=(56, 75, 80, 96, 112, 150), channels=(16, 24, 32, 48, 64, 72, 80, 96, 128, 160),
                             kernel=(1, 3, 5), stride=(1, 2))),
    Part("conv2d", 60, Grid(sizes=(14, 28, 56), channels=(64, 96, 128, 192, 256, 384), kernel=(3, 5),
                            groups=(2, 4, 32))),
    Part("conv2d", 60, Grid(sizes=(112, 160, 192, 256, 320), channels=(3, 40, 48, 72, 80), kernel=(3, 5, 7, 11),
                            stride=(2, 4), bias=(0, 1))),
    Part("conv2d", 450, Grid(sizes=(4, 7, 8, 14, 20, 28, 38, 56, 75), channels=CHANNELS, kernel=(1, 3, 5),
                             stride=(1, 2)), train=True),
    Part("depthwise", 350, Grid(sizes=(7, 10, 12, 14, 19, 24, 28, 48, 56, 96), channels=ALONE, kernel=(3, 5, 7),
                                stride=(1, 2), bias=(0, 1))),
    Part("depthwise", 80, Grid(sizes=(4, 7, 8, 14, 16), channels=ALONE, kernel=(3, 5, 7), stride=(1, 2)), hot=True),
    Part("depthwise", 150, Grid(sizes=(7, 10, 14, 24, 28, 56, 96), channels=ALONE, kernel=(3, 5, 7), stride=(1, 2)),
         train=True),
    Part("linear", 220, Grid((1,), (32, 196, 512, 1568, 2048, 6272, 18432, 25088, 50176, 100352), WIDTHS)),
    Part("linear", 60, Grid((1,), (196, 1568, 6272, 25088), WIDTHS), train=True),
    Part("linear", 60, Grid((1,), (512, 2048, 4096, 8192), WIDTHS, dtype=("bfloat16",))),
    Part("linear", 40, Grid((1,), (16, 32, 64), (1000, 1536, 2560, 5120, 6144, 8192, 10240))),
    Part("cat", 170, Grid(sizes=(7, 9, 14, 18, 28, 37, 56), channels=(24, 32, 40, 48, 64, 96, 160, 288, 416, 640, 928),
                          pieces=(2, 3, 4, 6, 8, 12, 16, 20, 24))),
    Part("layer_norm", 60, Grid(sizes=(49, 196, 784, 2304, 3136), channels=ALONE), train=True),
    Part("bmm", 50, Grid((96, 192, 384, 768, 1536), (32, 49, 64, 98, 196), (32, 64, 96, 128)), train=True),
    Part("softmax", 20, Grid((96, 384, 1536), (49, 98, 196), (49, 98, 196, 512))),
)  # fmt: skip
"""What predictions of an H200's database were furthest off at: convolutions' algorithms, depthwise ones, their
gradients, products of few and of many rows, and concatenations."""


def wanted_tasks(avoided: set[str], smaller: int) -> Iterator[Task]:
    """Yield every operator of the parts whose family of shapes no avoided workload has.

    Args:
        avoided: Families of shapes.
        smaller: Draw so many times fewer of each part.
    """
    for number, part in enumerate(PARTS):
        workload = sweep(part.operator, part.grid, max(part.count // smaller, 1), number, train=part.train)
        mode = Mode.HOT if part.hot else Mode.ROTATING
        yield from (Task(use.key, mode) for use in workload.uses if shape_family(use.key) not in avoided)


def families_under(folder: Path | None) -> set[str]:
    """Return the families of shapes of the workloads in a folder."""
    paths = [] if folder is None else sorted(folder.rglob(f"*{SUFFIX}"))
    return {shape_family(use.key) for path in paths for use in read_workload(path).uses}


def own_share(tasks: list[Task], lane: str) -> list[Task]:
    """Return what one of several lanes measures: ``1/4`` is the second of four. Each has its own, of every part."""
    number, lanes = (int(part) for part in lane.split("/"))
    if not 0 <= number < lanes:
        raise SystemExit(f"--lane {lane}: from 0/{lanes} to {lanes - 1}/{lanes}")
    order = sorted(tasks, key=lambda task: (task.key.digest, task.mode))
    random.Random(0).shuffle(order)
    return order[number::lanes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--database", default="operators.db")
    parser.add_argument("--avoid", type=Path, help="a folder of workloads")
    parser.add_argument("--lane", default="0/1")
    parser.add_argument("--seconds", type=float, default=500.0, help="for all of it, kernels' names among it")
    parser.add_argument("--smaller", type=int, default=1, help="draw so many times fewer, for a try")
    parser.add_argument("--device")
    options = parser.parse_args()
    started_s = time.monotonic()
    tasks = own_share(list(dict.fromkeys(wanted_tasks(families_under(options.avoid), options.smaller))), options.lane)
    place, database = find_device(options.device), open_database(options.database)
    fill_around(database, place, time.time_ns)
    lacking = missing_tasks(tasks, database, place, need_energy=False)
    method = Method(target_frac=0.02, energy=False, least_blocks=6)
    results = {
        "environment": describe_environment(place.device),
        "method": method.document(),
        "lane": options.lane,
        "wanted": len(tasks),
        "lacking": len(lacking),
    }
    write_results(options.out, results)
    print(f"{len(lacking)} of {len(tasks)} to be measured, after {time.monotonic() - started_s:.0f} s", flush=True)
    left_s = options.seconds - (time.monotonic() - started_s) - NAMES_S * len(lacking)
    measuring_s = time.monotonic()
    done = measure(lacking, database, place, method, budget_ns=max(int(left_s * 1e9), 0))
    seconds = (time.monotonic() - measuring_s) / max(done.measured + done.failed, 1)
    write_results(options.out, {**results, "outcome": asdict(done), "seconds_an_operator": seconds})
    print(f"{done}, {seconds:.3f} s an operator", flush=True)
    print(f"{name_kernels(database, place)} operators' kernels named, {time.monotonic() - started_s:.0f} s", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
