"""Compares joules of layers in mixtures of five unlike blocks with the same blocks measured alone.

Each mixture has all blocks in a random order, each for a random time of 1 to 15 ms. After them the GPU rests, so that
the mean power stays below the limit. In the last three mixtures it does not rest and bfloat16 products run for most of
the time: the power limit lowers the clock.

Alone, a block runs for 5 ms at a time, with a short and with a long rest. The difference is the power of a resting GPU,
which is taken off. For the last three mixtures a block is measured alone without a rest. Mixtures and blocks alone are
read from the same energy counter; the attribution to layers is gpuledger's.

Usage: python bench/energy/layer_mixtures.py --out bench/energy/results/h100/layer_mixtures.json (about 250 s)
           [--mixtures 20] [--seed 1] [--time-limit-s 280] [--small]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from unlike_blocks import Block, Mixture, unlike_works

import gpuledger
from gpuledger.analyze.step.energy import break_down_energy
from gpuledger.errors import GpuLedgerError
from gpuledger.integrations.step_energy import card_energy_counter, measure_call_energy

WITHOUT_REST = 3
"""Mixtures at the power limit."""
BURST_S, ALONE_S = 0.005, 2.0
SHORT, LONG = 1.0, 3.0
"""Rests of a block alone, as multiples of the time that it ran."""
RECORDED = (3, 5)
MIXTURE_S = 3.5
PASSES = "memory,time,energy"


def time_of(work: Callable[[], Any]) -> float:
    """Return the seconds that one call takes on the GPU, the median of five."""
    times_s = []
    for _ in range(7):
        begun_s = time.perf_counter()
        for _ in range(5):
            work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times_s.append((time.perf_counter() - begun_s) / 5)
    return statistics.median(times_s[2:])


def alone(work: Callable[[], Any], work_s: float, read_j: Callable[[], float]) -> dict[str, float]:
    """Return the joules of one call: with rests between bursts, and without any rest."""
    count = max(round(BURST_S / work_s), 1)
    found: dict[str, float] = {}
    joules, rests_s = [], []
    for rest_frac in (SHORT, LONG):
        mixture = Mixture({"alone": Block(work, count)}, rest_frac)
        slept_s: list[float] = []
        energy = measure_call_energy(lambda one=mixture, into=slept_s: into.append(one()), read_j, ALONE_S)
        joules.append(energy.joules)
        rests_s.append(statistics.fmean(slept_s))
    found["resting_w"] = (joules[1] - joules[0]) / (rests_s[1] - rests_s[0])
    found["rested_j"] = (joules[0] - found["resting_w"] * rests_s[0]) / count
    busy = Mixture({"alone": Block(work, 4 * count)}, 0.0)
    found["continuous_j"] = measure_call_energy(busy, read_j, ALONE_S).joules / (4 * count)
    return found


def draw(names: list[str], times_s: dict[str, float], chance: random.Random, rests: bool) -> dict[str, int]:
    """Return a mixture: name -> calls of the work, in a random order."""
    order = chance.sample(names, len(names))
    wanted_s = {name: 0.001 * 15 ** chance.random() for name in order}
    if not rests:
        wanted_s["products_bf16"] = 0.05 + 0.05 * chance.random()
    return {name: max(round(wanted_s[name] / times_s[name]), 1) for name in order}


def record(works: dict[str, Callable[[], Any]], calls: dict[str, int], rests: bool, place: Path) -> dict[str, Any]:
    """Return the joules of each block in a recorded mixture, with the stated uncertainty."""
    mixture = Mixture({name: Block(works[name], count) for name, count in calls.items()}, 1.0 if rests else 0.0)
    mixture.eval()
    silence = io.StringIO()
    with (
        contextlib.redirect_stderr(silence),
        torch.no_grad(),
        gpuledger.record(out=place, steps=RECORDED, passes=PASSES) as recording,
    ):
        end_s = time.monotonic() + MIXTURE_S
        while time.monotonic() < end_s:
            mixture()
    rank = recording.run().rank(0)
    found = break_down_energy(rank)
    told: dict[str, Any] = {"calls": calls, "rests": rests, "notes": list(rank.manifest.notes)}
    if found is None:
        return told
    accounts = {name: [one for one in found.accounts if one.module.rpartition(".")[2] == name] for name in calls}
    return told | {
        "method": found.method,
        "base_w": found.base_w,
        "step_energy_j": found.step_energy_j,
        "blocks_j": {name: sum(one.energy_j for one in ones) for name, ones in accounts.items()},
        "uncertainty_j": {name: sum(one.uncertainty_j for one in ones) for name, ones in accounts.items()},
    }


def compare(mixture: dict[str, Any], truths: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row for each block of a mixture."""
    how = "rested_j" if mixture["rests"] else "continuous_j"
    rows = []
    for name, energy_j in mixture.get("blocks_j", {}).items():
        truth_j = truths[name][how] * mixture["calls"][name]
        uncertainty_j = mixture["uncertainty_j"][name]
        off = energy_j / truth_j - 1
        rows.append({"block": name, "off": off, "covered": abs(energy_j - truth_j) <= uncertainty_j})
    return rows


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors of some rows."""
    sizes = sorted(abs(row["off"]) for row in rows)
    if not sizes:
        return {"n": 0}
    return {
        "n": len(sizes),
        "median_off": statistics.median(sizes),
        "worst_off": sizes[-1],
        "covered_frac": sum(row["covered"] for row in rows) / len(rows),
    }


def main() -> None:
    """Measure the blocks alone, before and after the mixtures, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mixtures", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time-limit-s", type=float, default=280.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    end_s = time.monotonic() + given.time_limit_s
    torch.manual_seed(0)
    works = unlike_works(given.device, given.small)
    times_s = {name: time_of(work) for name, work in works.items()}
    truths: dict[str, dict[str, float]] = {}
    try:
        truths = {name: alone(work, times_s[name], card_energy_counter()) for name, work in works.items()}
    except GpuLedgerError as error:
        print(f"no layer is measured alone: {error}", flush=True)
    chance, mixtures, rows = random.Random(given.seed), [], []
    with tempfile.TemporaryDirectory() as directory:
        for number in range(given.mixtures):
            rests = number < given.mixtures - WITHOUT_REST
            calls = draw(list(works), times_s, chance, rests)
            if time.monotonic() + 2 * MIXTURE_S > end_s:
                break
            mixture = record(works, calls, rests, Path(directory, f"{number}.ledger"))
            mixture["rows"] = compare(mixture, truths) if truths else []
            mixtures.append(mixture)
            rows += [{**row, "rests": rests} for row in mixture["rows"]]
            print(number, [f"{row['block']} {row['off']:+.1%}" for row in mixture["rows"]], flush=True)
    rested = [row for row in rows if row["rests"]]
    results = {
        "environment": describe_environment(given.device),
        "seed": given.seed,
        "wanted": given.mixtures,
        "times_s": times_s,
        "alone": truths,
        "mixtures": mixtures,
        "summary": {
            "all": summary_of(rows),
            "below the power limit": summary_of(rested),
            "at the power limit": summary_of([row for row in rows if not row["rests"]]),
            **{name: summary_of([row for row in rows if row["block"] == name]) for name in works},
        },
    }
    write_results(given.out, results)
    print(results["summary"])


if __name__ == "__main__":
    main()
