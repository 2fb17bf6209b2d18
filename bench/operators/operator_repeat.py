"""Measures random operators in two campaigns on one GPU, and compares their medians. Also measures the cost of one.

Usage: python bench/operators/operator_repeat.py --workload a.workload.json --count 100 --out FILE
With --ancestor N the ancestor's own method stands beside it on N of them: hot, eager, one fixed loop, mean of blocks
within 3 sigma, and mean of power readings within 3 sigma times that time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

from gpuledger.ops.database.method import Method, Mode
from gpuledger.ops.database.records import Record
from gpuledger.ops.database.statistics import mean_within_3_sigma
from gpuledger.ops.measure.copies import make_copies
from gpuledger.ops.measure.measured_device import Device, find_device
from gpuledger.ops.measure.one import measure_one
from gpuledger.ops.workloads.workload import read_workload


def apart(first: list[Record], second: list[Record], name: str) -> dict[str, float] | None:
    """Return how far apart two campaigns are, as shares."""
    pairs = [(getattr(one, name), getattr(two, name)) for one, two in zip(first, second, strict=True)]
    shares = [abs(two / one - 1) for one, two in pairs if one and two]
    if not shares:
        return None
    return {"median_frac": float(np.median(shares)), "p90_frac": float(np.quantile(shares, 0.9)), "count": len(shares)}


def ancestors_way(key: Any, place: Device, seconds: float) -> dict[str, float | None]:
    """Return time and energy of one call as the ancestor measured them."""
    (call,) = make_copies(key, Mode.HOT, place)

    def block(calls: int) -> float:
        start_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        if place.on_card:
            torch.cuda.synchronize()
        return (time.perf_counter_ns() - start_ns) / calls

    calls = max(int(seconds * 1e9 / 4 / block(20)), 1)
    times, watts = [], []
    for _ in range(4):
        times.append(block(calls))
        if place.sensors is not None:
            watts.append(place.sensors.read_sensors().power_average_w or np.nan)
    time_ns = mean_within_3_sigma(np.array(times))
    energy_j = mean_within_3_sigma(np.array(watts)) * time_ns / 1e9 if watts else None
    return {"time_ns": time_ns, "energy_j": energy_j}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workload", type=Path, action="append", required=True)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0, help="number of random operators to skip")
    parser.add_argument("--device")
    parser.add_argument("--time-only", action="store_true")
    parser.add_argument("--precision", type=float, default=0.01, help="share of the median time")
    parser.add_argument("--settle-s", type=float, help="second campaign: seconds of load before an energy measurement")
    parser.add_argument("--window-s", type=float, help="second campaign: seconds of one energy measurement")
    parser.add_argument("--alike", action="store_true", help="use these two settings for both campaigns")
    parser.add_argument("--ancestor", type=int, default=0, help="operators to measure the earlier tool's way as well")
    parser.add_argument("--seconds", type=float, default=16.0, help="duration of the earlier tool's loop")
    options = parser.parse_args()
    place = find_device(options.device)
    method = Method(target_frac=options.precision, energy=not options.time_only)
    shorter = {name: getattr(options, name) for name in ("settle_s", "window_s") if getattr(options, name) is not None}
    second = replace(method, **shorter)
    methods = (second if options.alike else method, second)
    keys = list({use.key: None for path in options.workload for use in read_workload(path).uses})
    random.Random(0).shuffle(keys)
    keys = keys[options.skip :][: options.count]
    campaigns: list[list[Record]] = []
    seconds = []
    for number, how in enumerate(methods):
        order = list(range(len(keys)))
        random.Random(number + 1).shuffle(order)
        started_s = time.monotonic()
        found = {place_: measure_one(keys[place_], Mode.ROTATING, place, how) for place_ in order}
        seconds.append((time.monotonic() - started_s) / len(keys))
        campaigns.append([found[place_] for place_ in range(len(keys))])
    results: dict[str, Any] = {
        "environment": describe_environment(place.device),
        "method": methods[0].document(),
        "second_method": methods[1].document(),
        "operators": len(keys),
        "seconds_an_operator": seconds,
        "time": apart(*campaigns, "time_median_ns"),
        "time_by_3_sigma_mean": apart_by_mean(*campaigns),
        "energy": apart(*campaigns, "energy_median_j"),
        "energies_j": [[record.energy_median_j for record in one] for one in campaigns],
        "failed": sum(record.status == "failed" for record in campaigns[0]),
        "ancestor": [],
    }
    write_results(options.out, results)
    print(results["time"], results["time_by_3_sigma_mean"], results["energy"], seconds, flush=True)
    for key, record in list(zip(keys, campaigns[0], strict=True))[: options.ancestor]:
        if record.status == "ok":
            way = ancestors_way(key, place, options.seconds)
            beside = {"operator": key.text, "ours_ns": record.time_median_ns, "ours_j": record.energy_median_j}
            results["ancestor"].append({**beside, **{f"ancestor_{name}": value for name, value in way.items()}})
            write_results(options.out, results)


def apart_by_mean(first: list[Record], second: list[Record]) -> dict[str, float] | None:
    """Return how far apart the old 3-sigma means of two campaigns are."""
    shares = []
    for one, two in zip(first, second, strict=True):
        if one.status == two.status == "ok":
            shares.append(abs(two.blocks[0]["mean_3_sigma_ns"] / one.blocks[0]["mean_3_sigma_ns"] - 1))
    if not shares:
        return None
    return {"median_frac": float(np.median(shares)), "p90_frac": float(np.quantile(shares, 0.9)), "count": len(shares)}


if __name__ == "__main__":
    main()
