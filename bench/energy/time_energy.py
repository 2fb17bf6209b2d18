"""Measures the timing and energy measurements: how well they repeat and add up, what they leave behind, and Zeus.

Each model is recorded twice as a user would (`gpuledger run --passes memory,energy,time`), training and inference. Then
a model of two known halves, and each half alone; then one window of ten seconds by our ticks and by ZeusMonitor (where
the package zeus is installed). Without a GPU the joules are null, and the rest is run all the same.

Usage: python bench/energy/time_energy.py --out bench/energy/results/h200/time_energy.json
           [--models gpt2,resnet50] [--small]
       python bench/energy/time_energy.py --parts halves zeus --out FILE --keep DIRECTORY
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import describe_environment, write_results
from models import EIGHT

from gpuledger.analyze.step.energy import break_down_energy
from gpuledger.analyze.step.overhead import find_overhead
from gpuledger.analyze.step.rates import find_rates
from gpuledger.analyze.step.steps import step_times
from gpuledger.analyze.step.times import break_down_time
from gpuledger.model.manifest import RankManifest
from gpuledger.services.runs import load

PARTS = ("halves", "models", "zeus")
"""The last one leaves this process on the GPU, where the others would see it."""
SCRIPTS = {
    "training": ("train_one.py", "--steps", "24", "--times"),
    "inference": ("infer_one.py", "--calls", "60"),
}
RUN_FIGURES = (
    "busy_against_bare",
    "unplaced_share",
    "between_share",
    "without_module_share",
    "timed_step_against_bare",
    "after_against_bare",
    "sums_to_the_counter_within",
)
RUN = (sys.executable, "-m", "gpuledger", "run", "-q", "--force", "--no-stacks", "--passes", "memory,time,energy")
RECORDED = (11, 13)
"""The recorded steps: late, so that some unprofiled ones come before the timing measurement."""


def record(script: list[str], name: str, directory: Path) -> dict[str, Any]:
    """Return what one recorded program says of its energy."""
    run = directory / f"{name}.ledger"
    done = subprocess.run(
        [*RUN, "--steps", f"{RECORDED[0]}:{RECORDED[1]}", "--out", str(run), *script],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=LIB,
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-3:]}
    rank = load(run).rank(0)
    found, rates = break_down_energy(rank), find_rates(rank)
    passes = [
        {key: value for key, value in one.to_json().items() if key != "notes"} for one in rank.manifest.energy or ()
    ]
    return {
        "step_time_ns": step_times(rank).median_ns,
        "step_energy_j": None if found is None else found.step_energy_j,
        "step_uncertainty_j": None if found is None else found.step_uncertainty_j,
        "base_w": None if found is None else found.base_w,
        "method": None if found is None else found.method,
        "sums_to_the_counter_within": None if found is None else _off(found),
        "halves_j": None if found is None else _halves(found),
        "sample_energy_j": None if rates is None else rates.sample_energy_j,
        "passes": passes,
        "notes": rank.manifest.notes,
        "timed_step_against_bare": find_overhead(rank).profiled_step_frac,
        **_times(rank),
        **_around_the_passes(done.stdout, rank.manifest),
    }


def _times(rank: Any) -> dict[str, Any]:
    """Return how the kernels' time closes, and how much of it found no module."""
    found = break_down_time(rank)
    if found is None:
        return {}
    bare_ns = step_times(rank).median_ns
    outside = math.fsum(
        one.time_ns for one in found.accounts if not one.module and one.phase not in ("optimizer", "between")
    )
    return {
        "kernel_ms": found.work_ns / 1e6,
        "busy_ms": found.busy_ns / 1e6,
        "busy_against_bare": None if bare_ns is None else found.busy_ns / bare_ns,
        "unplaced_share": found.unplaced_ns / found.work_ns,
        "between_share": found.between_ns / found.work_ns,
        "without_module_share": outside / found.work_ns,
    }


def _off(found: Any) -> float:
    return abs(math.fsum(one.energy_j for one in found.accounts) - found.step_energy_j) / found.step_energy_j


def _halves(found: Any) -> dict[str, float]:
    """Return the joules of each half of bench/lib/halves.py, and of the idle GPU."""
    return {
        half: sum(one.energy_j for one in found.accounts if (one.module or one.phase) == half)
        for half in ("products", "copies", "idle")
    }


def _around_the_passes(stdout: str, manifest: RankManifest) -> dict[str, Any]:
    """Return the bare step before the time pass, and what a step takes in it and after it, over that."""
    lines, timed = stdout.splitlines(), manifest.time_steps
    times_s = json.loads(lines[-1]).get("step_times_s") if lines else None
    if not times_s or timed is None:
        return {}
    bare_s = statistics.median(times_s[4 : RECORDED[0] - 1])
    after = times_s[timed[1] :]
    return {
        "bare_step_ms": bare_s * 1e3,
        "after_against_bare": statistics.median(after) / bare_s if after else None,
    }


def repeatability(runs: list[dict[str, Any]], name: str) -> float | None:
    """Return how far two runs are apart in one figure."""
    first, second = (run.get(name) for run in runs)
    return abs(first / second - 1) if first and second else None


def model_twice(model: str, words: list[str], directory: Path) -> dict[str, Any]:
    """Return two runs of one program, and how far apart they are."""
    runs = [record(words, model, directory) for _ in range(2)]
    return {
        "runs": runs,
        "energy_repeats_within": repeatability(runs, "step_energy_j"),
        "kernels_repeat_within": repeatability(runs, "kernel_ms"),
    }


def keep_run(directory: Path, name: str, kept: Path | None) -> None:
    """Keep what one program recorded, for tests that have no GPU."""
    if kept is not None:
        shutil.copytree(directory / f"{name}.ledger", kept / f"{name}.ledger", dirs_exist_ok=True)


def two_halves(directory: Path, extra: list[str]) -> dict[str, Any]:
    """Return each half's joules in the model of both, beside its joules alone.

    Alone its step has idle time too: the base power over that is taken off, so that both are the half's own.
    """
    script = str(LIB / "halves.py")
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
    from gpuledger.cards.energy_edges import find_edge
    from gpuledger.model.energy_window import measure_window
    from gpuledger.ops.measure.measured_device import find_device

    card = find_device("cuda:0", force=True).sensors
    if card is None:
        return {"skipped": "the driver does not tell of this card"}
    monitor, work = ZeusMonitor(gpu_indices=[0]), _products()
    next(work)
    ours, theirs = [], []
    for _ in range(3):
        start = find_edge(time.time_ns(), card)
        monitor.begin_window("window")
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            next(work)
        theirs.append(monitor.end_window("window").total_energy)
        end = find_edge(time.time_ns(), card)
        ours.append(None if start is None or end is None else measure_window(start, end).energy_j)
    off = [one / other - 1 for one, other in zip(ours, theirs, strict=True) if one and other]
    return {"seconds": seconds, "ours_j": ours, "zeus_j": theirs, "off": off}


def _products() -> Iterator[None]:
    """Run matrix products for about 10 ms at a time; the GPU is waited for."""
    left = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    right = torch.randn_like(left)
    while True:
        for _ in range(40):
            torch.mm(left, right)
        torch.cuda.synchronize()
        yield


def main() -> None:
    """Record what is asked for and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", default=",".join(EIGHT))
    parser.add_argument("--limit-s", type=float, default=1_500)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each program goes on")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--keep", type=Path, help="keep the runs there")
    arguments = parser.parse_args()
    deadline_s = time.monotonic() + arguments.limit_s
    words = ["--device", arguments.device, "--seconds", str(arguments.seconds)]
    words += ["--small"] if arguments.small else []
    results: dict[str, Any] = {"environment": describe_environment(arguments.device), "models": {}}
    with tempfile.TemporaryDirectory() as scratch:
        if "halves" in arguments.parts:
            results["halves"] = two_halves(Path(scratch), words)
            keep_run(Path(scratch), "both", arguments.keep)
            write_results(arguments.out, results)
        for model in arguments.models.split(",") if "models" in arguments.parts else ():
            for mode, program in SCRIPTS.items():
                if time.monotonic() > deadline_s:
                    break
                name = f"{model}-{mode}"
                found = model_twice(name, [str(LIB / program[0]), model, *program[1:], *words], Path(scratch))
                keep_run(Path(scratch), name, arguments.keep)
                results["models"].setdefault(model, {})[mode] = found
                print(name, found["energy_repeats_within"], found["kernels_repeat_within"], flush=True)
                write_results(arguments.out, results)
        if "zeus" in arguments.parts:
            results["zeus"] = against_zeus(10.0) if arguments.device.startswith("cuda") else {"skipped": "no card"}
            write_results(arguments.out, results)
    results["summary"] = summary_of(results["models"])
    write_results(arguments.out, results)


def summary_of(models: dict[str, Any]) -> dict[str, float]:
    """Return the median and the worst of each figure over models and modes."""
    found: dict[str, float] = {}
    pairs = [pair for modes in models.values() for pair in modes.values()]
    figures = {name: [pair[name] for pair in pairs] for name in ("energy_repeats_within", "kernels_repeat_within")}
    figures |= {name: [run.get(name) for pair in pairs for run in pair["runs"]] for name in RUN_FIGURES}
    for name, values in figures.items():
        known = [value for value in values if value is not None]
        if known:
            found |= {f"{name}_median": statistics.median(known), f"{name}_worst": max(known)}
    return found


if __name__ == "__main__":
    main()
