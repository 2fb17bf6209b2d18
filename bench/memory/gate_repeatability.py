"""Measures how much a limit in bytes varies: one training recorded repeatedly, and what a test's marks measure.

Usage: python bench/memory/gate_repeatability.py --out bench/memory/results/h200/gate.json --repeats 10 --parallel 5
Two models take about two minutes on an H200; --device cpu --small works anywhere.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

import gpuledger
from gpuledger.analyze.compare.metrics import measure, metric_devices
from gpuledger.integrations.pytest_measure import measure_test
from gpuledger.integrations.step_energy import card_energy_counter, measure_call_energy

BLOCK_BYTES = 64 << 20
TIME_LIMIT_S = 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gpt2", "resnet50"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--parallel", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "what": "peaks of the same training recorded again, one process each; a test's bytes and joules on the card",
        "environment": describe_environment(arguments.device),
        "models": {name: repeat_model(name, arguments) for name in arguments.models},
        "test_of_64_MiB": repeat_test(arguments),
    }
    if arguments.device.startswith("cuda"):
        results["energy_of_a_call"] = repeat_energy()
    write_results(arguments.out, results)
    print(json.dumps({name: found["spread"] for name, found in results["models"].items()}))


def repeat_model(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return every repeat's exact figures, and how far apart they lie."""
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(arguments.parallel) as pool:
        jobs = [
            pool.submit(record_model, name, arguments, Path(directory) / f"{number}")
            for number in range(arguments.repeats)
        ]
        rows = [job.result() for job in jobs]
    spread = {key: max(row[key] for row in rows) - min(row[key] for row in rows) for key in rows[0]}
    return {"repeats": len(rows), "spread": spread, "rows": rows}


def record_model(name: str, arguments: argparse.Namespace, out: Path) -> dict[str, float]:
    """Return the exact figures of one recorded training in a process of its own."""
    script = [str(ROOT / "bench" / "lib" / "train_one.py"), name, "--steps", "5", "--device", arguments.device]
    script += ["--small"] if arguments.small else []
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(out), *script]
    subprocess.run(command, check=True, timeout=TIME_LIMIT_S, stdout=subprocess.DEVNULL)
    rank = gpuledger.load(f"{out}.ledger").rank()
    found = measure(rank, metric_devices(rank)[-1])
    return {key: found[key].value for key in ("peak_allocated_bytes", "peak_reserved_bytes")}


def repeat_test(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a test that takes 64 MiB is measured at, beside ever more of what was there before."""
    there, peaks = [], []
    for number in range(arguments.repeats):
        there.append(torch.empty(number << 20, dtype=torch.uint8, device=arguments.device))
        with tempfile.TemporaryDirectory() as directory:
            with gpuledger.record(out=Path(directory) / "test", devices=arguments.device) as recording:
                torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=arguments.device)
            found = measure_test(recording.run())
        assert found is not None
        peaks.append(found.peak_bytes)
    return {"expected_bytes": BLOCK_BYTES, "found_bytes": peaks}


def repeat_energy() -> list[dict[str, float]]:
    """Return the joules of one matrix product, measured three times over two seconds."""
    left, right = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def call() -> None:
        for _ in range(50):
            left @ right
        torch.cuda.synchronize()

    call()
    found = [measure_call_energy(call, card_energy_counter(), 2.0) for _ in range(3)]
    return [{"joules": one.joules, "uncertainty_j": one.uncertainty_j, "calls": one.calls} for one in found]


if __name__ == "__main__":
    main()
