"""Measures the energy pass: how well a step's joules repeat, close, and find their half, and how they stand to Zeus.

Each model is recorded twice as a user would (`gpuledger run --passes memory,energy,time`), training and inference. Then
a model of two known halves, and each half alone; then one window of ten seconds by our ticks and by ZeusMonitor (where
the package zeus is installed). Without a card the joules are null, and the rest is run all the same.

Usage: python bench/energy_pass.py --out bench/results/h200/energy_pass.json [--models gpt2,resnet50] [--small]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from environment import describe_environment, write_results
from models import EIGHT

from gpuledger.analyze.energy import break_down_energy
from gpuledger.analyze.rates import find_rates
from gpuledger.analyze.steps import step_times
from gpuledger.api import load
from gpuledger.errors import GpuLedgerError

HERE = Path(__file__).parent
RUN = (sys.executable, "-m", "gpuledger", "run", "-q", "--force", "--no-stacks", "--passes", "memory,energy,time")


def record(script: list[str], name: str, directory: Path) -> dict[str, Any]:
    """Return what one recorded program says of its energy."""
    run = directory / f"{name}.ledger"
    done = subprocess.run(
        [*RUN, "--out", str(run), *script], capture_output=True, text=True, timeout=300, check=False, cwd=HERE
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-3:]}
    rank = load(run).rank(0)
    found, rates = break_down_energy(rank), find_rates(rank)
    passes = [{key: value for key, value in one.items() if key != "notes"} for one in rank.manifest.get("energy") or []]
    return {
        "step_time_ns": step_times(rank).median_ns,
        "step_energy_j": None if found is None else found.step_energy_j,
        "step_uncertainty_j": None if found is None else found.step_uncertainty_j,
        "base_w": None if found is None else found.base_w,
        "sums_to_the_counter_within": None if found is None else _off(found),
        "halves_j": None if found is None else _halves(found),
        "sample_energy_j": None if rates is None else rates.sample_energy_j,
        "passes": passes,
        "notes": rank.manifest["notes"],
        **_around_the_passes(done.stdout, rank.manifest),
    }


def _off(found: Any) -> float:
    return abs(math.fsum(one.energy_j for one in found.accounts) - found.step_energy_j) / found.step_energy_j


def _halves(found: Any) -> dict[str, float]:
    """Return the joules of each half of bench/halves.py, and of the idle card."""
    return {
        half: sum(one.energy_j for one in found.accounts if (one.module or one.phase) == half)
        for half in ("products", "copies", "idle")
    }


def _around_the_passes(stdout: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the bare step before the time pass, and what a step takes in it and after it, over that."""
    lines, timed = stdout.splitlines(), manifest.get("time_steps")
    times_s = json.loads(lines[-1]).get("step_times_s") if lines else None
    if not times_s or timed is None:
        return {}
    first, last = timed
    bare_s = statistics.median(times_s[4 : first - 1])
    after = times_s[last:]
    return {
        "bare_step_ms": bare_s * 1e3,
        "timed_step_against_bare": times_s[last - 1] / bare_s,
        "after_against_bare": statistics.median(after) / bare_s if after else None,
    }


def repeatability(runs: list[dict[str, Any]]) -> float | None:
    """Return how far two runs' joules of a step are apart."""
    joules = [run.get("step_energy_j") for run in runs]
    return abs(joules[0] / joules[1] - 1) if len(joules) == 2 and all(joules) else None


def two_halves(directory: Path, extra: list[str]) -> dict[str, Any]:
    """Return each half's joules in the model of both, beside its joules alone.

    Alone its step has idle time too: the base power over that is taken off, so that both are the half's own.
    """
    script = str(HERE / "halves.py")
    found = {which: record([script, which, *extra], which, directory) for which in ("both", "products", "copies")}
    inside = found["both"].get("halves_j")
    compared: dict[str, Any] = {}
    for half in ("products", "copies"):
        alone = found[half].get("halves_j")
        if inside and alone and alone[half]:
            compared[half] = {
                "in_model_j": inside[half],
                "alone_j": alone[half],
                "off": inside[half] / alone[half] - 1,
                "mean_w_alone": found[half]["step_energy_j"] / found[half]["step_time_ns"] * 1e9,
            }
    return {"runs": found, "compared": compared}


def against_zeus(seconds: float) -> dict[str, Any]:
    """Return one window of matrix products by our ticks and by ZeusMonitor."""
    try:
        from zeus.monitor import ZeusMonitor
    except ImportError as error:
        return {"skipped": f"the package zeus cannot be imported: {error}"}
    from gpuledger.collect.sensors import open_cards
    from gpuledger.collect.ticks import find_edge, measure_window

    try:
        (card, *_), _ = open_cards()
    except GpuLedgerError as error:
        return {"skipped": error.message}
    monitor, work = ZeusMonitor(gpu_indices=[0]), _products()
    next(work)
    ours, theirs = [], []
    for _ in range(3):
        start = find_edge(time.time_ns(), card.read_energy_mj, card.read_throttled_ns)
        monitor.begin_window("window")
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            next(work)
        theirs.append(monitor.end_window("window").total_energy)
        end = find_edge(time.time_ns(), card.read_energy_mj, card.read_throttled_ns)
        ours.append(None if start is None or end is None else measure_window(start, end).energy_j)
    off = [one / other - 1 for one, other in zip(ours, theirs, strict=True) if one and other]
    return {"seconds": seconds, "ours_j": ours, "zeus_j": theirs, "off": off}


def _products() -> Iterator[None]:
    """Run matrix products for about 10 ms at a time; the card is waited for."""
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    while True:
        for _ in range(40):
            torch.mm(left, right)
        torch.cuda.synchronize()
        yield


def main() -> None:
    """Record everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(EIGHT))
    parser.add_argument("--limit-s", type=float, default=1_500)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each program goes on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    deadline_s = time.monotonic() + arguments.limit_s
    size = ["--device", arguments.device, *(["--small"] if arguments.small else [])]
    length = ["--seconds", str(arguments.seconds)]
    results: dict[str, Any] = {"environment": describe_environment(arguments.device), "models": {}}
    with tempfile.TemporaryDirectory() as scratch:
        results["halves"] = two_halves(Path(scratch), [*size, *length])
        results["zeus"] = against_zeus(10.0) if arguments.device.startswith("cuda") else {"skipped": "no card"}
        write_results(arguments.out, results)
        for model in filter(None, arguments.models.split(",")):
            if time.monotonic() > deadline_s:
                break
            for mode, words in (
                ("training", ["train_one.py", model, "--steps", "24", "--times"]),
                ("inference", ["infer_one.py", model, "--calls", "60"]),
            ):
                script = [str(HERE / words[0]), *words[1:], *size, *length]
                runs = [record(script, f"{model}-{mode}", Path(scratch)) for _ in range(2)]
                results["models"].setdefault(model, {})[mode] = {"runs": runs, "repeats_within": repeatability(runs)}
                print(model, mode, json.dumps(results["models"][model][mode]["repeats_within"]), flush=True)
                write_results(arguments.out, results)
    apart = [one[mode]["repeats_within"] for one in results["models"].values() for mode in one]
    known = [value for value in apart if value is not None]
    results["median_repeats_within"] = statistics.median(known) if known else None
    write_results(arguments.out, results)


if __name__ == "__main__":
    main()
