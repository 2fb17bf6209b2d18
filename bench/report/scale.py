"""Measures what viewing a run of a million blocks costs: wall time, peak memory and file size of processes.

A synthetic run is written by a child process. ``show`` and ``report`` are then started as a user would, each in fresh
processes, and PyTorch's own page maker is given the same events where torch is installed. This process imports neither
numpy nor torch: a child's peak memory is never below what its parent held when it was started.

Usage: python bench/report/scale.py [--blocks 1000000] [--repeats 5] [--out bench/report/results/cpu/scale.json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    "show": {"wall_s": 2.0, "peak_rss_bytes": 700 << 20},
    "report": {"wall_s": 4.0, "peak_rss_bytes": 700 << 20, "file_bytes": 1_500_000},
}

MAKE_RUN = """
import sys; from pathlib import Path
sys.path.insert(0, sys.argv[1])
from synthetic import make_run
make_run(Path(sys.argv[2]), blocks=int(sys.argv[3]), modules=200)
"""

MAKE_SNAPSHOT = """
import pickle, sys; from pathlib import Path
from gpuledger.model.run import read_run
from gpuledger.analyze.memory.lifetimes import read_lives, read_numbers
from gpuledger.analyze.posting.replay import NEVER
rank = read_run(Path(sys.argv[1])).rank()
lives, address = read_lives(rank, 0), read_numbers(rank, "blocks", "address", 0).tolist()
sizes, events = lives.requested_bytes.tolist(), []
for action, marks in (("alloc", lives.alloc_index), ("free_requested", lives.free_requested_index),
                      ("free_completed", lives.free_index)):
    events += [(index, action, number) for number, index in enumerate(marks.tolist()) if 0 <= index < NEVER]
events.sort()
trace = [{"action": action, "addr": address[number], "size": sizes[number], "stream": 0, "time_us": index, "frames": []}
         for index, action, number in events]
with open(sys.argv[2], "wb") as stream:
    pickle.dump({"segments": [], "device_traces": [trace]}, stream)
print(len(trace))
"""

DESCRIBE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from environment import describe_environment
print(json.dumps(describe_environment("cpu")))
"""


def measure(command: list[str], repeats: int) -> dict[str, Any]:
    """Return the medians of ``repeats`` runs of ``command`` after one that warms the page cache."""
    run_once(command)
    runs = [run_once(command) for _ in range(repeats)]
    walls = [wall_s for wall_s, _ in runs]
    return {
        "wall_s": round(statistics.median(walls), 3),
        "wall_all_s": [round(wall_s, 3) for wall_s in walls],
        "peak_rss_bytes": int(statistics.median(rss for _, rss in runs)),
    }


def run_once(command: list[str]) -> tuple[float, int]:
    """Return wall seconds and peak resident bytes of one whole process.

    Source: monotonic clock; the kernel's accounting of that one child (wait4), KiB on Linux.
    """
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            errors.seek(0)
            raise SystemExit(
                f"{' '.join(command)}: status {child.returncode}\n{errors.read().decode(errors='replace')}"
            )
    unit = 1 if sys.platform == "darwin" else 1024
    return wall_s, usage.ru_maxrss * unit


def python(code: str, *arguments: str | Path) -> str:
    """Return what a child running ``code`` printed."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def describe() -> dict[str, Any]:
    """Return machine, versions, commit and date."""
    cores = {"cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()}
    if importlib.util.find_spec("torch") is None:
        return {"python": platform.python_version(), "processor": platform.processor(), **cores}
    return {**json.loads(python(DESCRIBE, ROOT / "bench" / "lib")), **cores}


def measure_ours(run: Path, directory: Path, repeats: int) -> dict[str, Any]:
    """Return the figures of ``show`` and ``report``, and whether the peak is the allocator's own."""
    tool = [sys.executable, "-m", "gpuledger"]
    page = directory / "report.html"
    figures = {
        "show": measure([*tool, "show", str(run), "--at", "peak"], repeats),
        "report": measure([*tool, "report", str(run), "-o", str(page), "--force"], repeats),
    }
    figures["report"]["file_bytes"] = page.stat().st_size
    for name, limits in TARGETS.items():
        figures[name]["target"] = limits
        figures[name]["reached"] = all(figures[name][key] <= limit for key, limit in limits.items())
    shown = subprocess.run([*tool, "show", str(run), "--json"], check=True, capture_output=True, text=True).stdout
    counted = python(
        "import sys; from pathlib import Path; from gpuledger.model.run import read_run\n"
        "print(max(read_run(Path(sys.argv[1])).table('counters')['peak_allocated_bytes'].to_pylist()))",
        run,
    )
    figures["peak_exact"] = json.loads(shown)["peak_allocated_bytes"] == int(counted)
    return figures


def measure_torch(run: Path, directory: Path, repeats: int) -> dict[str, Any] | None:
    """Return the figures of PyTorch's page maker on the same events; None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    snapshot, page = directory / "snapshot.pickle", directory / "trace.html"
    events = int(python(MAKE_SNAPSHOT, run, snapshot))
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(snapshot), "-o", str(page)]
    return {"events": events, **measure(command, repeats), "file_bytes": page.stat().st_size}


def main() -> None:
    """Measure, print a line a figure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "report" / "results" / "cpu" / "scale.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        run = directory / "scale.ledger"
        python(MAKE_RUN, ROOT / "tests" / "support", run, str(asked.blocks))
        results = {"blocks": asked.blocks, "repeats": asked.repeats, "environment": describe()}
        results |= measure_ours(run, directory, asked.repeats)
        results["torch_memory_viz"] = measure_torch(run, directory, asked.repeats)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name in ("show", "report", "torch_memory_viz"):
        figure = results[name]
        if figure:
            size = f"   file {figure['file_bytes'] / 1e6:.1f} MB" if "file_bytes" in figure else ""
            print(f"{name:18}{figure['wall_s']:7.2f} s   {figure['peak_rss_bytes'] >> 20:6} MiB{size}")
    print(f"peak exact: {results['peak_exact']}   written to {asked.out}")


if __name__ == "__main__":
    main()
