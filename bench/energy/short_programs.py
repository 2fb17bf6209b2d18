"""Measures whether programs that use the GPU for about one second get joules, and how far these are from a long run's.

Each model trains under ``gpuledger run`` with default options, each time in a process of its own: once for ten seconds
after its first step, and then for as many steps as take the seconds of ``--seconds`` there. ``off_frac`` is the
difference of the joules of a step in the short program and in the long one, ``power_off_frac`` that of the power;
``stated_frac`` is the sum of the ranges that the two runs state. Where the CPU is the limit, a slower step on a busy
host takes more joules at the same power. The GPU is also cooler in a short program.

Usage: python bench/energy/short_programs.py --out bench/energy/results/h200/short_programs.json [--rounds 2]
           [--models gpt2,resnet50,lstm,neumf] [--seconds 0.5,1,2]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

import gpuledger
from gpuledger.analyze.step.energy import step_energy

SCRIPT = ROOT / "bench" / "lib" / "train_one.py"
LONG_S = 10.0


def record(model: str, steps: int, seconds: float = 0.0) -> dict[str, Any]:
    """Return the joules of a step of one recorded program of so many steps, or of some seconds after its first one."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run.ledger"
        script = [str(SCRIPT), model, "--steps", str(steps), "--seconds", str(seconds), "--device", "cuda"]
        command = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(out), *script]
        began = time.perf_counter()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        found: dict[str, Any] = {"program_steps": steps, "took_s": time.perf_counter() - began}
        if ended.returncode:
            return found | {"error": ended.stderr[-2000:]}
        rank = gpuledger.load(out).rank()
        step = step_energy(rank)
        if step is not None:
            found |= {"steps": step.steps, "step_energy_j": step.energy_j, "uncertainty_j": step.uncertainty_j}
            found |= {"measured_s": step.duration_s, "base_w": step.base_w}
        return found | {"notes": list(rank.manifest.notes)}


def compare(short: dict[str, Any], long: dict[str, Any]) -> dict[str, Any]:
    """Return a short program's figures with its difference from the long one's."""
    if "step_energy_j" not in short or "step_energy_j" not in long:
        return short
    off_frac = short["step_energy_j"] / long["step_energy_j"] - 1
    power_off_frac = short["step_energy_j"] / short["measured_s"] / (long["step_energy_j"] / long["measured_s"]) - 1
    stated_frac = (short["uncertainty_j"] + long["uncertainty_j"]) / long["step_energy_j"]
    return short | {"off_frac": off_frac, "power_off_frac": power_off_frac, "stated_frac": stated_frac}


def main() -> None:
    """Measure the models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default="gpt2,resnet50,lstm,neumf")
    parser.add_argument("--seconds", default="0.5,1,2")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    models: dict[str, Any] = {}
    results = {"environment": describe_environment("cuda"), "rounds": given.rounds, "long_s": LONG_S, "models": models}
    for model in given.models.split(","):
        long = record(model, 1, LONG_S)
        models[model] = {"long": long, "short": []}
        for seconds in [float(one) for one in given.seconds.split(",")] * given.rounds if "measured_s" in long else ():
            one = {"seconds": seconds, **record(model, max(1, round(seconds / long["measured_s"])))}
            models[model]["short"].append(compare(one, long))
            print(f"{model} {seconds} s: {one.get('step_energy_j')} J {one.get('notes')}", flush=True)
        write_results(given.out, results)


if __name__ == "__main__":
    main()
