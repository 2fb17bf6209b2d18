"""Measures the merged view of many ranks: time and memory of show and report, and whether planted outliers are found.

Two runs are made: 64 ranks with blocks, and a simulated run of 1,000 ranks and 2,000 modules that has summaries only,
with outliers planted in it. Each command runs in a process of its own. CPU time is the process's own, so that a busy
machine changes it less than the wall clock. Peak memory is at least that of this script when it starts the process.

Usage: python bench/report/ranks.py --out bench/report/results/cpu/ranks.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench" / "lib"), str(ROOT / "tests" / "support")]

from environment import describe_environment, write_results
from many_ranks import MIB, make_summaries
from synthetic import make_run

from gpuledger.analyze.ranks.summaries import write_summary
from gpuledger.services.runs import load

PLANTED = {(417, "activation", "layers.1000"): 900 * MIB, (3, "gradient", "layers.2"): 1 * MIB}
MERGE = """
import sys, time
from pathlib import Path
from gpuledger.model.run import read_run
from gpuledger.analyze.ranks.rank_set import build_rank_set
run = read_run(Path(sys.argv[1]))
begin = time.perf_counter()
found = build_rank_set(run)
print([[one.rank, one.category, one.module] for one in found.outliers], time.perf_counter() - begin, sep="|")
"""


def add_blocks(run: Path, rank: int, place: Path) -> None:
    """Give one rank of a run of summaries the tables of a recording, as ranks have whose events were kept."""
    recorded = make_run(place / "one.ledger", ranks=1, blocks=2000, modules=200) / "rank-0"
    shutil.copytree(recorded, run / f"rank-{rank}", dirs_exist_ok=True)


def timed(words: list[str], repeats: int) -> dict[str, Any]:
    """Return wall time, CPU time and peak memory of a command, the lowest of some repeats, and what it printed."""
    walls, cpus, peaks, printed = [], [], [], ""
    for _ in range(repeats):
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        assert status == 0, words
        walls.append(time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        peaks.append(used.ru_maxrss << 10)
    return {
        "wall_s": min(walls),
        "cpu_s": min(cpus),
        "peak_rss_bytes": min(peaks),
        "repeats": repeats,
        "printed": printed,
    }


def measure(run: Path, place: Path, repeats: int) -> dict[str, Any]:
    """Return the figures of show and report of one run."""
    page = place / f"{run.stem}.html"
    command = [sys.executable, "-m", "gpuledger"]
    show = timed([*command, "show", str(run)], repeats)
    report = timed([*command, "report", str(run), "-o", str(page), "--force"], repeats)
    found = {"show": show, "report": report, "report_bytes": page.stat().st_size}
    show["printed"] = show["printed"].splitlines()[:2]
    del report["printed"]
    return found


def main() -> None:
    """Measure both runs and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        recorded = make_run(place / "recorded.ledger", ranks=64, blocks=2000, modules=30)
        for rank in load(recorded).ranks:
            write_summary(rank)
        simulated = make_summaries(place / "simulated.ledger", 1000, 2000, planted=PLANTED)
        add_blocks(simulated, 417, place)
        merged = timed([sys.executable, "-c", MERGE, str(simulated)], given.repeats)
        outliers, _, merge_s = merged.pop("printed").rpartition("|")
        document = {
            **describe_environment("cpu"),
            "cores": os.cpu_count(),
            "load_average": os.getloadavg()[0],
            "recorded_64": measure(recorded, place, given.repeats),
            "simulated_1000": measure(simulated, place, given.repeats),
            "merge_1000": {**merged, "merge_s": float(merge_s)},
            "planted": sorted([list(key) for key in PLANTED]),
            "found": sorted(json.loads(outliers.replace("'", '"'))),
        }
    write_results(Path(given.out), document)


if __name__ == "__main__":
    main()
