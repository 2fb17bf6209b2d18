"""Estimates trainings that others measured on other GPUs, and compares errors and verdicts of out of memory.

The measurements are those of xMem (Stone-ResearchLife/xMem on GitHub; Middleware '25, doi 10.1145/3721462.3770773):
torch 2.6 with CUDA 12.4 on RTX 3060, RTX 4060 and A100. A truth is the maximum of NVML's used bytes minus its first
sample, which excludes the CUDA context. It is compared with reserved memory and libraries. ``--measured`` names the
file, one JSON document per line. Torchvision 0.28 and transformers 4.51.3, as theirs, have to be importable.

Nothing is fitted to single rows. What was fitted: whether cuDNN's workspaces are counted (:data:`POLICIES`), and the
bytes of libraries. Both are chosen again without each GPU and without each model.

Usage: python bench/estimate/strangers.py --measured xmem.jsonl --out bench/estimate/results/cpu/strangers.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuledger.simulate.catalogue import GpuModel
    from gpuledger.simulate.estimate.fit import Requests

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results
from forks import in_a_fork
from strangers_train import STEPS, train

GPUS = {
    "NVIDIA GeForce RTX 3060": "rtx-3060",
    "NVIDIA GeForce RTX 4060": "rtx-4060",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
}


ERRORS = Path(__file__).resolve().parents[2] / "src/gpuledger/simulate/estimate/errors_elsewhere.toml"
POLICIES = ("with workspaces", "without workspaces")
LEVEL, SHORT_BATCH = 0.95, 12
"""Texts in smaller batches may be shorter than 128 tokens, so their length is an assumption."""
KEPT = ("kind", "model", "optimizer", "batch", "zero_grad_position", "gpu", "ground_bytes", "oom", "xmem_rel_error")


def estimate_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return estimates of one training, without the CUDA context, by policy. Runs in a process of its own."""
    from gpuledger.model.journal.reading import read_journal
    from gpuledger.simulate.catalogue import find_card
    from gpuledger.simulate.convolutions import convolutions
    from gpuledger.simulate.estimate.fit import Requests
    from gpuledger.simulate.estimate.follow import follow
    from gpuledger.simulate.estimate.run import Order

    convolutions.needs_workspace = lambda data, capability: True
    order = Order(("train.py",), find_card(GPUS[row["gpu"]]), STEPS)
    with tempfile.TemporaryDirectory() as directory:
        settings, place = asdict(order.settings), row["zero_grad_position"] or 0
        given = {"card": order.card.key, "steps": STEPS, "settings": settings, "run_directory": directory}
        outcome = follow(given, lambda: train(row["model"], row["optimizer"], row["batch"], place))
        if outcome["ended"] not in ("steps", "exit"):
            return {"failed": f"{outcome['kind']}: {outcome['message']}"[:200]}
        requests = Requests(read_journal(Path(directory) / "rank-0" / "journal"), order.settings)
    both = zip(POLICIES, (requests, requests.without_cudnn()), strict=True)
    return {policy: one_estimate(each, order.card) for policy, each in both}


def one_estimate(requests: Requests, card: GpuModel) -> dict[str, Any]:
    """Return allocated and reserved bytes and the verdict, as an estimate on the GPU finds them."""
    from gpuledger.simulate.estimate.fit import fit_card, peaks_on

    free = requests.replay()
    counters = free.counters
    peaks = peaks_on(card, counters.peak_allocated_bytes, counters.peak_reserved_bytes, LEVEL)
    fit = fit_card(card, peaks, requests, LEVEL)
    return {
        "verdict": fit.verdict,
        "allocated_bytes": counters.peak_allocated_bytes,
        "reserved_bytes": min(fit.process_bytes, peaks.process_bytes) - card.outside_bytes,
    }


def in_a_child(row: dict[str, Any]) -> dict[str, Any]:
    """Return the estimate of one training, made in a fork that has the libraries loaded."""
    found = in_a_fork(partial(estimate_row, row))
    return {"failed": found["error"][:200]} if "error" in found else found


def error_of(row: dict[str, Any], policy: str, library_bytes: int) -> float:
    """Return the relative error of a training's estimate."""
    return float((row["estimates"][policy]["reserved_bytes"] + library_bytes) / row["ground_bytes"] - 1)


def choose(rows: list[dict[str, Any]]) -> tuple[str, int]:
    """Return the policy and the library bytes with the smallest median error."""
    sizes = [mib << 20 for mib in range(0, 161, 2)]
    options = [(policy, size) for policy in POLICIES for size in sizes]
    return min(options, key=lambda option: statistics.median(abs(error_of(row, *option)) for row in rows))


def left_out(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the errors of rows with what the rows of other values of ``name`` choose."""
    errors: list[float] = []
    for value in sorted({row[name] for row in rows}):
        chosen = choose([row for row in rows if row[name] != value])
        errors += [error_of(row, *chosen) for row in rows if row[name] == value]
    return summary(errors)


def summary(errors: list[float]) -> dict[str, Any]:
    """Return median, mean, 90th percentile and maximum of absolute errors."""
    sizes = sorted(abs(error) for error in errors)
    return {
        "rows": len(sizes),
        "median": round(statistics.median(sizes), 4),
        "mean": round(statistics.fmean(sizes), 4),
        "p90": round(sizes[int(0.9 * (len(sizes) - 1))], 4),
        "most": round(sizes[-1], 4),
    }


def sum_up(rows: list[dict[str, Any]], library_bytes: int) -> dict[str, Any]:
    """Return errors of the trainings that finished, and wrong verdicts of all."""
    done = [row for row in rows if not row["oom"] and "failed" not in row["estimates"]]
    shipped = [(row, error_of(row, POLICIES[1], library_bytes)) for row in done]
    groups = {
        "all": [error for _, error in shipped],
        "images": [error for row, error in shipped if row["kind"] == "CNN"],
        "texts": [error for row, error in shipped if row["kind"] != "CNN"],
        "texts of 128 tokens": [e for row, e in shipped if row["kind"] != "CNN" and row["batch"] >= SHORT_BATCH],
        "xmem": [row["xmem_rel_error"] for row in done],
        **{f"on {GPUS[gpu]}": [error for row, error in shipped if row["gpu"] == gpu] for gpu in GPUS},
    }
    verdicts = [(row, row["estimates"].get(POLICIES[1], {}).get("verdict")) for row in rows]
    wrong = [row for row, verdict in verdicts if (verdict == "does not fit") != row["oom"]]
    return {
        "errors": {name: summary(errors) for name, errors in groups.items() if errors},
        "without_each_gpu": left_out(done, "gpu"),
        "without_each_model": left_out(done, "model"),
        "chosen": choose(done),
        "verdicts": len(rows),
        "wrong_verdicts": [f"{row['model']} {row['optimizer']} {row['batch']} {row['gpu']}" for row in wrong],
    }


def errors_toml(rows: list[dict[str, Any]], library_bytes: int) -> str:
    """Return truth over estimate by kind of program, of trainings that finished and have inputs of known length."""
    lines = [
        "# Truth over estimate of reserved memory and libraries, of trainings on RTX 3060 and RTX 4060, by kind.",
        "# Made by bench/estimate/strangers.py from xMem's measurements.",
    ]
    for kind, of_kind in (("followed", False), ("guessed", True)):
        lines += ["", f'["{kind} on another GPU"]']
        found: dict[str, float] = {}
        for row in rows:
            is_image, gpu = row["kind"] == "CNN", GPUS[row["gpu"]]
            is_known = is_image or row["batch"] >= SHORT_BATCH
            if row["oom"] or "failed" in row["estimates"] or not is_known or is_image != of_kind or "rtx" not in gpu:
                continue
            model = row["model"].rpartition("/")[2].replace("-", "").lower()
            name = f"{model}-{row['optimizer'].lower()}-{row['batch']}-{gpu}"
            found[name] = max(found.get(name, 0.0), 1 / (1 + error_of(row, POLICIES[1], library_bytes)))
        lines += [f"{name} = {ratio:.5f}" for name, ratio in sorted(found.items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Estimate every training and write the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="keep the estimates that the result has already")
    options = parser.parse_args()
    from gpuledger.simulate.catalogue import find_card
    from gpuledger.simulate.gpu.card import let_torchvision_import

    let_torchvision_import()
    import torchvision  # noqa: F401  # children have it loaded
    import transformers  # noqa: F401

    done: dict[Any, dict[str, Any]] = {}
    if options.keep and options.out.exists():
        before = json.loads(options.out.read_text(encoding="utf-8"))["rows"]
        done = {tuple(row[name] for name in KEPT[1:6]): row["estimates"] for row in before}
        done = {key: estimates for key, estimates in done.items() if "failed" not in estimates}
    rows = []
    for line in options.measured.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        key = tuple(row[name] for name in KEPT[1:6])
        if key not in done:
            done[key] = in_a_child(row)
        rows.append({**{name: row[name] for name in KEPT}, "estimates": done[key]})
        print(*key, row["ground_bytes"] >> 20, done[key], flush=True)
    library_bytes = find_card("rtx-3060").library_bytes.value
    found = {"environment": describe_environment("cpu"), **sum_up(rows, library_bytes), "rows": rows}
    write_results(options.out, found)
    ERRORS.write_text(errors_toml(rows, library_bytes), encoding="utf-8")
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}, indent=1))


if __name__ == "__main__":
    main()
