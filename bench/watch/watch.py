"""Measures the sampler of `gpuledger watch` on a GPU: lateness, rate, its own CPU, peaks seen, energy, slow-down.

Usage: python bench/watch/watch.py --out bench/watch/results/h200/watch.json
           (about 150 s; a part that fails names its error)
       python bench/watch/watch.py --parts alone windows --out FILE      (any NVML, the tests' scripted one too)
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

import gpuledger
import gpuledger.services.watching
from gpuledger.model.arrow_numbers import to_numbers

MIB = 1 << 20
LOAD = """
import sys, time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16); b = torch.randn_like(a)
print("ready", flush=True)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for _ in range(20): torch.mm(a, b)
    torch.cuda.synchronize()
"""
PULSES = """
import sys, time, torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
print("ready", flush=True)
due = time.monotonic() + 1.0
for _ in range(int(sys.argv[1])):
    time.sleep(max(due - time.monotonic(), 0))
    held = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
    until = time.monotonic() + 0.020
    while time.monotonic() < until: pass
    del held
    due += 0.100
time.sleep(0.5)
"""


def begin(source: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    """Return a program under way that has said it is ready."""
    program = subprocess.Popen(
        [sys.executable, "-c", source, *words], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n"
    return program


def sampler_facts(watch: gpuledger.services.watching.Watch, seconds: float) -> dict[str, Any]:
    """Return what the sampler said of itself."""
    facts = dict(watch.run().rank().manifest.to_json()["sampler"])
    due = facts["readings"] + facts["missed"]
    return {**facts, "on_time_frac": facts["on_time"] / due, "rate_hz": facts["readings"] / seconds}


def steady_windows(directory: Path) -> dict[str, Any]:
    """Sample a busy GPU at 200 Hz for 60 s, in thirty windows of 2 s."""
    load = begin(LOAD, "75")
    time.sleep(5)  # the power and the clock settle
    started_s = time.monotonic()
    with gpuledger.watch("steady", interval="5ms", out=directory / "steady") as watch:
        for number in range(30):
            with watch.window(f"{number:02d}"):
                time.sleep(2.0)
    seconds = time.monotonic() - started_s
    load.kill()
    load.wait()
    rows = [row for row in watch.run().rank().table("windows").to_pylist() if row["name"] and row["device_idx"] == 0]
    power_w = np.array([row["energy_j"] / ((row["end_ns"] - row["start_ns"]) / 1e9) for row in rows])
    at_s = np.array([row["start_ns"] / 1e9 for row in rows]) - rows[0]["start_ns"] / 1e9
    line = np.polyval(np.polyfit(at_s, power_w, 1), at_s)
    own = watch.run().rank().manifest.to_json()["sampler"]
    return {
        "sampler": sampler_facts(watch, seconds),
        "cpu_frac_of_a_core": own["cpu_s"] / seconds,
        "windows": len(rows),
        "power_w": power_w.tolist(),
        "scatter_frac": float(np.std(power_w - line, ddof=2) / power_w.mean()),
        "worst_frac": float(np.abs(power_w - line).max() / power_w.mean()),
        "stated_uncertainty_frac": statistics.median(row["uncertainty_j"] / row["energy_j"] for row in rows),
    }


def sampling_alone(directory: Path) -> dict[str, Any]:
    """Sample for 15 s at 200 Hz without a window inside: the sampler's share of a core."""
    started_s = time.monotonic()
    with gpuledger.watch("alone", interval="5ms", out=directory / "alone") as watch:
        time.sleep(15)
    seconds = time.monotonic() - started_s
    facts = sampler_facts(watch, seconds)
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    due_s = started_s
    while time.monotonic() - started_s < 5:
        due_s += 0.005
        time.sleep(max(due_s - time.monotonic(), 0))
    empty = (time.process_time() - started_cpu_s) / 5
    return {"sampler": facts, "cpu_frac_of_a_core": facts["cpu_s"] / seconds, "empty_loop_frac_of_a_core": empty}


def windows_alone(directory: Path) -> dict[str, Any]:
    """Sample for 20 s at 200 Hz in ten windows, with nothing on the GPU: whether the counter's reads cost samples."""
    started_s = time.monotonic()
    with gpuledger.watch("windows", interval="5ms", out=directory / "windows") as watch:
        for number in range(10):
            with watch.window(f"{number}"):
                time.sleep(2.0)
    seconds = time.monotonic() - started_s
    facts = sampler_facts(watch, seconds)
    return {"sampler": facts, "cpu_frac_of_a_core": facts["cpu_s"] / seconds, "energy_j": watch.windows}


def highest_rate(directory: Path) -> dict[str, Any]:
    """Sample a busy GPU every millisecond, and every half, for 10 s."""
    load = begin(LOAD, "30")
    found = {}
    for interval in ("1ms", "500us"):
        started_s = time.monotonic()
        with gpuledger.watch("fast", interval=interval, out=directory / f"fast-{interval}") as watch:
            time.sleep(10)
        found[interval] = sampler_facts(watch, time.monotonic() - started_s)
    load.kill()
    load.wait()
    return found


def peaks_seen(directory: Path) -> dict[str, Any]:
    """Look for 300 MiB held for 20 ms every 100 ms, at 200 Hz."""
    pulses = begin(PULSES, "50", PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    with gpuledger.watch("pulses", interval="5ms", out=directory / "pulses") as watch:
        pulses.wait()
    table = watch.run().rank().table("samples", ("device_idx", "used_bytes"))
    used = to_numbers(table["used_bytes"])[to_numbers(table["device_idx"]) == 0]
    low = int(np.median(used))
    high = used - low > 150 * MIB
    starts = np.flatnonzero(np.diff(high.astype(int)) == 1) + 1
    ends = np.flatnonzero(np.diff(high.astype(int)) == -1) + 1
    heights = [int(used[a:b].max()) - low for a, b in zip(starts, ends, strict=False)]
    return {
        "pulses": 50,
        "seen": len(heights),
        "heights_mib": sorted({height / MIB for height in heights}),
        "all_within_a_mib": all(abs(height / MIB - 300) <= 1 for height in heights),
    }


def slow_down(directory: Path) -> dict[str, Any]:
    """Train GPT-2 small, watched and not, in turns."""
    from models import MODELS

    torch.manual_seed(0)
    workload = MODELS["gpt2"].build("cuda", small=False, batch_size=0)

    def block() -> float:
        started_s = time.perf_counter()
        for _ in range(25):
            workload.train(workload.make_batch())
        torch.cuda.synchronize()
        return time.perf_counter() - started_s

    block()
    ratios, bare_s = [], block()
    for number in range(12):
        with gpuledger.watch("train", interval="5ms", out=directory / f"train-{number}"):
            time.sleep(0.3)
            watched_s = block()
        next_s = block()
        ratios.append(watched_s / ((bare_s + next_s) / 2))
        bare_s = next_s
    return {"ratios": ratios, "median_ratio": statistics.median(ratios), "step_ms": bare_s / 25 * 1e3}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "steady": steady_windows,
    "peaks": peaks_seen,
    "slow_down": slow_down,
    "alone": sampling_alone,
    "windows": windows_alone,
    "rate": highest_rate,
}


def main() -> None:
    """Run the parts, and write what there is after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, Any] = {"environment": describe_environment(device)}
    with tempfile.TemporaryDirectory() as scratch:
        for name in dict.fromkeys(arguments.parts):
            started_s = time.monotonic()
            try:
                results[name] = PARTS[name](Path(scratch))
            except Exception as error:
                results[name] = {"failed": f"{type(error).__name__}: {error}"}
            results[name]["wall_s"] = round(time.monotonic() - started_s, 1)
            print(name, json.dumps(results[name])[:600], flush=True)
            write_results(arguments.out, results)


if __name__ == "__main__":
    main()
