"""Measures how long an energy window must be: aligned and plain reads of the counter, and polled power.

Usage: python bench/operators/operator_window.py --out bench/operators/results/h200/operator_window.json
           (needs a GPU; 4 minutes)
One steady load; the truth is its mean power over the whole run, from tick to tick. For each length the error of single
windows is told; the three ways look at the same moments. nvidia-smi logs the same load for ten
seconds where it is installed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.cards.energy_edges import find_edge
from gpuledger.operator_key import OperatorKey
from gpuledger.ops.database.method import Method, Mode
from gpuledger.ops.measure.blocks import Load, between_ticks
from gpuledger.ops.measure.copies import make_copies
from gpuledger.ops.measure.measured_device import find_device
from gpuledger.ops.measure.runners import make_runner

LENGTHS_S = (0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
REPEATS = 8
MATRIX = {"shape": [4096, 4096], "dtype": "bfloat16", "stride": [4096, 1]}


def errors_of(watts: list[float], truth_w: float) -> dict[str, float]:
    """Return the errors of windows, as shares of the truth."""
    away = np.abs(np.array(watts) / truth_w - 1)
    return {"median_frac": float(np.median(away)), "worst_frac": float(away.max()), "count": len(watts)}


def windows_w(sensors: Any, length_s: float, *, aligned: bool) -> float | None:
    """Return the mean power of one window."""
    if aligned:
        start = find_edge(time.time_ns(), sensors)
        time.sleep(length_s)
        end = find_edge(time.time_ns(), sensors)
        if start is None or end is None:
            return None
        window = between_ticks(start, end)
        return None if window.energy_j is None else window.energy_j / ((window.end_ns - window.start_ns) / 1e9)
    start_s, start_mj = time.monotonic(), sensors.read_energy_mj()
    time.sleep(length_s)
    end_mj, end_s = sensors.read_energy_mj(), time.monotonic()
    return (end_mj - start_mj) / 1e3 / (end_s - start_s)


def polled_w(sensors: Any, length_s: float) -> float:
    """Return the mean of power readings, as a poller takes them from the first moment."""
    readings, until_s = [], time.monotonic() + length_s
    while time.monotonic() < until_s:
        readings.append(sensors.read_sensors().power_average_w or np.nan)
        time.sleep(0.01)
    return float(np.nanmean(readings))


def smi_w(seconds: float) -> float | None:
    """Return the mean power that nvidia-smi logs; None where it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return None
    words = ["nvidia-smi", "-i", "0", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "-lms", "10"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as logger:
        time.sleep(seconds)
        logger.terminate()
        text, _ = logger.communicate()
    values = [float(line) for line in text.split() if line.replace(".", "").isdigit()]
    return float(np.mean(values)) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    place = find_device(options.device)
    sensors = place.sensors
    if sensors is None:
        raise SystemExit("operator_window: needs a GPU with an energy counter")
    key = OperatorKey("aten.mm.default", (MATRIX, {**MATRIX}))
    runner, _ = make_runner(make_copies(key, Mode.ROTATING, place), Method().block_ns, on_card=True)
    unit_ns = runner.time_units(1)
    results: dict[str, Any] = {"environment": describe_environment(place.device), "lengths": {}}
    with Load(runner, unit_ns) as load, ThreadPoolExecutor(3) as pool:
        time.sleep(10.0)
        first = find_edge(time.time_ns(), sensors)
        found: dict[float, dict[str, list[float]]] = {}
        for length_s in LENGTHS_S:
            repeats = options.repeats if length_s < 10 else max(options.repeats // 4, 2)
            found[length_s] = {"aligned": [], "plain": [], "polled": []}
            for _ in range(repeats):
                load.check()
                time.sleep(random.uniform(0.0, 0.1))  # so that the last window's end is not this one's start
                asked = {
                    "aligned": pool.submit(windows_w, sensors, length_s, aligned=True),
                    "plain": pool.submit(windows_w, sensors, length_s, aligned=False),
                    "polled": pool.submit(polled_w, sensors, length_s),
                }
                for name, answer in asked.items():
                    watts = answer.result()
                    if watts is not None:
                        found[length_s][name].append(watts)
        results["nvidia_smi_w"] = smi_w(10.0)
        last = find_edge(time.time_ns(), sensors)
    assert first is not None
    assert last is not None
    truth_w = (last.energy_mj - first.energy_mj) / 1e3 / ((last.tick_ns - first.tick_ns) / 1e9)
    results["truth_w"] = truth_w
    results["lengths"] = {
        str(length_s): {name: errors_of(watts, truth_w) for name, watts in kinds.items() if watts}
        for length_s, kinds in found.items()
    }
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    write_results(options.out, results)


if __name__ == "__main__":
    main()
