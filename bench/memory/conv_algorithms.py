"""Measures five convolution algorithms in VGG-19's forward: time of each layer, bytes, bytes per image, differences.

All algorithms, modes and batches run in one process, on 256×256 images with TF32 off (examples/conv_algorithms/ has
the code). Peak bytes over the batch get a straight line by least squares with its largest residual, and a larger
batch that had no part in the line is held against it. With ``--watch`` every algorithm is first run in a process of
its own under ``gpuledger watch``, from which the picture is drawn; this process has no context on the GPU then.

Usage: python bench/memory/conv_algorithms.py --out bench/memory/results/h200/conv_algorithms.json [--watch DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import ROOT, describe_environment, write_results

EXAMPLE = ROOT / "examples" / "conv_algorithms"
sys.path.insert(0, str(EXAMPLE))
from convolutions import ALGORITHMS, MODES
from measure import LayerDifferences, measure, time_log_lines, use_exact_float32
from network import VGG19, VGG19_WIDTH
from vgg19 import choose_device

LOOPED = ("im2col", "fft", "winograd")
"""Algorithms with a workspace of their own: the ones for which loop or batched makes a difference."""
TOLERANCE = 1e-3
INTERVAL = "5ms"
MIB = 2**20


def list_modes(algorithm: str) -> tuple[str, ...]:
    """Return the modes an algorithm is measured in."""
    return MODES if algorithm in LOOPED else MODES[:1]


def measure_case(
    network: VGG19, images: torch.Tensor, algorithm: str, mode: str, asked: argparse.Namespace
) -> dict[str, Any]:
    """Return times, bytes and the largest difference from the library's convolution."""
    if images.is_cuda:
        torch.backends.cuda.cufft_plan_cache.clear()
    with torch.inference_mode():
        result = measure(network, images, algorithm, mode, asked.repeats, 0.0, asked.case_seconds)
        differences = LayerDifferences(algorithm, mode)
        network.forward(images, differences.convolve)
    all_taken_bytes = result["layers"]["taken_bytes"]
    result["taken_bytes"] = None if None in all_taken_bytes else max(all_taken_bytes)
    result["largest_difference"] = max(differences.differences)
    result["within_tolerance"] = result["largest_difference"] <= TOLERANCE
    return result


def fit_line(batches: list[int], values_bytes: list[int]) -> dict[str, float]:
    """Return the least-squares line of bytes over the batch, in MiB, and its largest residual."""
    values_mib = [value / MIB for value in values_bytes]
    slope, constant = statistics.linear_regression(batches, values_mib)
    residuals = [value - constant - slope * batch for batch, value in zip(batches, values_mib, strict=True)]
    return {
        "mib_per_image": round(slope, 3),
        "constant_mib": round(constant, 3),
        "largest_residual_mib": round(max(map(abs, residuals)), 3),
    }


def fit_cases(cases: list[dict[str, Any]], held_out: int) -> dict[str, Any] | None:
    """Return the lines of one algorithm and mode, and the batch held against them; None where no bytes are known."""
    if any(case["peak_bytes"] is None for case in cases):
        return None
    fitted = [case for case in cases if case["batch"] != held_out]
    fits: dict[str, Any] = {}
    for key in ("peak_bytes", "taken_bytes"):
        line = fit_line([case["batch"] for case in fitted], [case[key] for case in fitted])
        predicted = line["constant_mib"] + line["mib_per_image"] * held_out
        found = [case[key] / MIB for case in cases if case["batch"] == held_out]
        fits[key] = {**line, "held_out_predicted_mib": round(predicted, 1), "held_out_mib": round(found[0], 1)}
    return fits


def measure_all(network: VGG19, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield each algorithm and mode with its cases and their lines; one that fails, with its error.

    A GPU's time is dear: what fails on it, for want of memory most likely, does not take the others with it.
    """
    batches = sorted({*asked.batches, asked.held_out})
    images = {batch: network.make_images(batch, asked.size).cpu() for batch in batches}
    for algorithm in ALGORITHMS:
        for mode in list_modes(algorithm):
            row: dict[str, Any] = {"algorithm": algorithm, "mode": mode, "fit": None, "cases": []}
            try:
                for batch in batches:
                    case = measure_case(network, images[batch].to(network.device), algorithm, mode, asked)
                    print(
                        f"{algorithm} {mode} {batch}: {case['total_ms']:.2f} ms, {case['peak_bytes']} bytes", flush=True
                    )
                    row["cases"].append({key: case[key] for key in case if key not in ("algorithm", "mode")})
                row["fit"] = fit_cases(row["cases"], asked.held_out)
            except RuntimeError as error:
                row["error"] = f"{type(error).__name__}: {error}"
                print(f"{algorithm} {mode}: {row['error']}", file=sys.stderr, flush=True)
            yield row


def format_time_log(results: dict[str, Any]) -> str:
    """Return the times of the fitted batches as a time log, which ``gpuledger plot`` draws."""
    measured = [{**row, **case} for row in results["algorithms"] for case in row["cases"]]
    return "".join(time_log_lines(case) for case in measured if case["batch"] in results["batches"])


def watch_all(directory: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what ``gpuledger watch`` of each algorithm in a process of its own ended with."""
    directory.mkdir(parents=True, exist_ok=True)
    watched = []
    for batch in asked.watch_batches:
        for algorithm in ALGORITHMS:
            for mode in list_modes(algorithm) if batch > 1 else MODES[:1]:
                name = algorithm if batch == 1 else f"{algorithm}-{mode}-{batch}"
                watched.append(watch_one(directory / name, algorithm, mode, batch, asked))
    return watched


def watch_one(out: Path, algorithm: str, mode: str, batch: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return name, exit status and seconds of one watched process."""
    program = [sys.executable, str(EXAMPLE / "vgg19.py"), "--algorithm", algorithm, "--mode", mode]
    program += ["--batch", str(batch), "--seconds", str(asked.watch_seconds), "--repeat", "1"]
    program += ["--size", str(asked.size), "--width", str(asked.width), "--device", asked.device]
    watcher = [sys.executable, "-m", "gpuledger", "watch", "--interval", INTERVAL, "--out", str(out), "--force"]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    begin_s = time.monotonic()
    done = subprocess.run([*watcher, "--", *program], check=False, env={**os.environ, "PYTHONPATH": path})
    return {
        "name": out.name,
        "exit_status": done.returncode,
        "duration_s": round(time.monotonic() - begin_s, 2),
    }


def whole_numbers(text: str) -> list[int]:
    """Return the numbers of a list such as ``1,2,4,8``."""
    return [int(part) for part in text.split(",")]


def read_arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "memory" / "results" / "h200" / "conv_algorithms.json"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--width", type=int, default=VGG19_WIDTH)
    parser.add_argument("--batches", type=whole_numbers, default=[1, 2, 4, 8])
    parser.add_argument("--held-out", type=int, default=32, help="the batch that is held against the fitted line")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case-seconds", type=float, default=1.5, help="no further repeat after so long")
    parser.add_argument("--watch", type=Path, metavar="DIRECTORY", help="watch every algorithm; runs go here")
    parser.add_argument("--watch-seconds", type=float, default=3.0)
    parser.add_argument("--watch-batches", type=whole_numbers, default=[1])
    return parser.parse_args()


def main() -> int:
    """Watch, measure and write the results; return 1 where an algorithm failed."""
    asked = read_arguments()
    watched = watch_all(asked.watch, asked) if asked.watch else []
    begin_s = time.monotonic()
    use_exact_float32()
    device = choose_device(asked.device)
    network = VGG19(device, asked.width)
    results: dict[str, Any] = {
        "environment": describe_environment(device.type),
        "size": asked.size,
        "width": asked.width,
        "batches": asked.batches,
        "held_out": asked.held_out,
        "tolerance": TOLERANCE,
        "weights_bytes": network.weights_bytes,
        "capacity_bytes": torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None,
        "watched": watched,
        "algorithms": [],
    }
    for algorithm in measure_all(network, asked):
        results["algorithms"].append(algorithm)
        results["wall_s"] = round(time.monotonic() - begin_s, 1)
        write_results(asked.out, results)
    asked.out.with_suffix(".log").write_text(format_time_log(results), encoding="utf-8")
    print(f"{results['wall_s']} s, written to {asked.out}")
    return int(any("error" in row for row in results["algorithms"]))


if __name__ == "__main__":
    sys.exit(main())
