"""Compares two checkouts of gpuledger: how their source is built, and how long ``show`` and ``report`` take.

The figures of ``tools/measure_house.py`` are taken for both. Then synthetic runs (one rank of a million blocks, and 64
ranks) are written once, by the first checkout's own ``tests/**/synthetic.py``. The 64 ranks are measured as they are,
as a run of an earlier version is, and again with the summaries of ranks, which the later checkout stores when it
records several. A single rank has none.

Each command is started as a user would start it, in the two checkouts in turn, so that a slow minute of the machine
falls on both. One round that is not counted warms the file cache and compiles to bytecode, as installing does.

Usage: python bench/house/house.py BEFORE AFTER [--blocks 1000000] [--ranks 64] [--repeats 7]
                             [--out bench/house/results/cpu/house.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from measure_house import describe, environment_of, measure_checkout

MAKE_RUN = """
import sys; from pathlib import Path
sys.path.insert(0, sys.argv[1])
from synthetic import make_run
make_run(Path(sys.argv[2]), blocks=int(sys.argv[3]), modules=200, ranks=int(sys.argv[4]))
"""

WRITE_SUMMARIES = """
import sys; from pathlib import Path
from gpuledger.analyze.ranks.summaries import write_summary
from gpuledger.model.run import read_run
for rank in read_run(Path(sys.argv[1])).ranks:
    write_summary(rank)
"""


def make_run(checkout: Path, run: Path, blocks: int, ranks: int) -> None:
    """Write a synthetic run of ``ranks`` ranks with ``blocks`` blocks each."""
    helpers = next((checkout / "tests").rglob("synthetic.py")).parent
    command = [sys.executable, "-c", MAKE_RUN, str(helpers), str(run), str(blocks), str(ranks)]
    subprocess.run(command, check=True, env=environment_of(checkout))


def write_summaries(checkout: Path, run: Path) -> None:
    """Write the summary of each rank beside its tables, as this checkout does to a recorded run of several ranks."""
    subprocess.run([sys.executable, "-c", WRITE_SUMMARIES, str(run)], check=True, env=environment_of(checkout))


def time_command(checkout: Path, arguments: list[str]) -> tuple[float, float, float]:
    """Return wall seconds, processor seconds and of these the user seconds of one whole process.

    Source: monotonic clock; the kernel's accounting of that child and of the children that it waited for (wait4).
    """
    command = [sys.executable, "-m", "gpuledger", *arguments]
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        child = subprocess.Popen(
            command, env=environment_of(checkout), cwd="/", stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            raise SystemExit(f"{checkout}: {' '.join(arguments)}: status {child.returncode}\n{errors.read().decode()}")
    return wall_s, usage.ru_utime + usage.ru_stime, usage.ru_utime


def time_in_turn(checkouts: list[Path], arguments: list[str], repeats: int) -> list[dict[str, Any]]:
    """Return per checkout the medians and the worst of ``repeats`` rounds after one that warms up."""
    rounds = [[time_command(checkout, arguments) for checkout in checkouts] for _ in range(repeats + 1)][1:]
    return [_figures(*zip(*times, strict=True)) for times in zip(*rounds, strict=True)]


def _figures(wall_s: tuple[float, ...], processor_s: tuple[float, ...], user_s: tuple[float, ...]) -> dict[str, Any]:
    """Return the figures of the rounds of one checkout. User time depends least on what else the machine does."""
    return {
        "median_wall_s": round(statistics.median(wall_s), 3),
        "worst_wall_s": round(max(wall_s), 3),
        "median_processor_s": round(statistics.median(processor_s), 3),
        "least_processor_s": round(min(processor_s), 3),
        "median_user_s": round(statistics.median(user_s), 3),
        "least_user_s": round(min(user_s), 3),
        "all_processor_s": [round(value, 3) for value in processor_s],
        "all_user_s": [round(value, 3) for value in user_s],
        "all_wall_s": [round(value, 3) for value in wall_s],
    }


def describe_machine() -> dict[str, Any]:
    """Return versions, processor and date, and how many cores are here and how busy they were."""
    code = f"import json,sys;sys.path.insert(0,{str(ROOT / 'bench' / 'lib')!r});from environment import *;"
    code += "print(json.dumps(describe_environment('cpu')))"
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment_of(ROOT)
    )
    return {**json.loads(told.stdout), "cores": os.cpu_count(), "load_average_1_min": os.getloadavg()[0]}


def main() -> None:
    """Measure both checkouts, print the tables and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "house" / "results" / "cpu" / "house.json")
    asked = parser.parse_args()
    checkouts = [asked.before, asked.after]
    results: dict[str, Any] = {"environment": describe_machine(), "repeats": asked.repeats}
    results["source"] = dict(
        zip(("before", "after"), (measure_checkout(path, asked.repeats) for path in checkouts), strict=True)
    )
    for rows in zip(*map(describe, results["source"].values()), strict=True):
        print(f"{rows[0][0]:28}" + "".join(f"{value:44}" for _, value in rows).rstrip())
    results["times"] = {}
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "report.html"
        for name, blocks, ranks, stored in (
            ("a million blocks", asked.blocks, 1, False),
            ("64 ranks without summaries", 2000, asked.ranks, False),
            ("64 ranks with summaries", 2000, asked.ranks, True),
        ):
            run = Path(temporary) / f"{ranks}.ledger"
            if stored:
                write_summaries(asked.after, run)
            else:
                make_run(asked.before, run, blocks, ranks)
            figures: dict[str, Any] = {"blocks_per_rank": blocks, "ranks": ranks, "rank_summaries": stored}
            for command, arguments in (
                ("show", ["show", str(run)]),
                ("report", ["report", str(run), "-o", str(page), "--force"]),
            ):
                before, after = time_in_turn(checkouts, arguments, asked.repeats)
                figures[command] = {"before": before, "after": after}
                for when, figure in figures[command].items():
                    wall_s, processor_s = figure["median_wall_s"], figure["median_processor_s"]
                    user_s = figure["median_user_s"]
                    print(
                        f"{name:28}{command:8}{when:8}{wall_s:8.2f} s wall {processor_s:8.2f} s processor"
                        f"{user_s:8.2f} s user"
                    )
            results["times"][name] = figures
    asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
