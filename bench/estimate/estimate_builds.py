"""Estimates the same trainings with several builds of torch, and checks that the answers are equal to the byte.

``--setting card`` runs ``gpuledger estimate --json`` as any user would on a machine with a GPU; ``hidden`` with no
GPU visible; ``no driver`` with a driver's library that cannot be loaded; ``cpu`` is for a torch built without CUDA.
Beside the peaks each answer keeps a digest of all blocks taken, in order, and of those given back, in any: autocast
drops its copies of weights at the end of a step in the order of their addresses, which no two processes have alike.
``--keep`` keeps the requests, so that a difference can be followed up. ``--join`` puts several files together and
compares each setting with the first.

Usage:
    python bench/estimate/estimate_builds.py --setting GPU hidden "no driver" --out builds_cuda.json
    python bench/estimate/estimate_builds.py --setting cpu --out builds_cpu.json
    python bench/estimate/estimate_builds.py --join builds_*.json --out bench/estimate/results/h200/estimate_builds.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from environment import ROOT, describe_environment, write_results

from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.model.journal.journal import Action
from gpuledger.model.journal.reading import read_journal
from gpuledger.services.runs import load

TRAININGS = (
    "gpt2-bf16-adamw-8",
    "resnet50-fp32-momentum-32",
    "lstm-fp32-adam-32",
    "bert-bf16-adamw-32-clip",
    "vit-bf16-adamw-32",
    "mobilenet-bf16-adamw-64",
    "qwen-pure-bf16-fused-2",
)
"""Language models, images, a recurrent one; plain, in autocast and in pure halves; the last two are held out."""
SETTINGS = ("card", "hidden", "no driver", "cpu")
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_process_bytes", "upper_bytes")
REQUESTS = ("requests", "taken_sha256", "given_back_sha256")
DRIVER_FILES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so")


def environment_of(setting: str, directory: Path) -> dict[str, str]:
    """Return a process's environment in a setting."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    if setting == "hidden":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if setting == "no driver":
        for name in DRIVER_FILES:
            (directory / name).touch()
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(
            filter(None, (str(directory), os.environ.get("LD_LIBRARY_PATH")))
        )
    return environment


def estimate(training: str, setting: str, timeout_s: float, keep: Path | None) -> dict[str, Any]:
    """Return the peaks that one estimate gives, or why it gives none."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "estimate.ledger"
        command = [sys.executable, "-m", "gpuledger", "estimate", "--gpu", "h200", "--json", "-q", "--out", str(run)]
        begin_s = time.monotonic()
        done = subprocess.run(
            [*command, str(LIB / "grid_train.py"), training, "--device", "cuda"],
            capture_output=True, text=True, timeout=timeout_s, env=environment_of(setting, Path(name)), cwd=name,
            check=False,
        )  # fmt: skip
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-3:]}
        answer = json.loads(done.stdout)
        found = {peak: answer[peak] for peak in PEAKS}
        found["wall_s"] = round(time.monotonic() - begin_s, 1)
        return found | requests_of(run, keep / f"{training}.{setting.replace(' ', '_')}.npy" if keep else None)


def requests_of(run: Path, keep: Path | None) -> dict[str, Any]:
    """Return the peak by category, and number and digests of all requests."""
    rank = load(run).rank(0)
    breakdown = break_down(rank, find_peak(rank), by=("category",))
    events = read_journal(run / "rank-0" / "journal").tables["events"]
    asked = np.isin(events["action"], (int(Action.ALLOC), int(Action.FREE_REQUESTED)))
    sizes = np.where(events["action"] == int(Action.ALLOC), events["bytes"], -events["bytes"])[asked].astype(np.int64)
    taken = sizes[sizes > 0]
    if keep:
        np.save(keep, sizes)
    return {
        "by_category": {account.category: account.bytes for account in breakdown.accounts},
        "requests": len(sizes),
        "taken_sha256": hashlib.sha256(taken.tobytes()).hexdigest(),
        "given_back_sha256": hashlib.sha256(np.sort(sizes[sizes < 0]).tobytes()).hexdigest(),
    }


def driver_seen(setting: str) -> str:
    """Return what torch itself says of GPUs in a setting."""
    program = "import torch as t; print(t.__version__, t.version.cuda, t.cuda.is_available(), t.cuda.device_count())"
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True, text=True, env=environment_of(setting, Path(name)), check=False,
        )  # fmt: skip
    return done.stdout.strip() or done.stderr.strip()[-200:]


def measure(arguments: argparse.Namespace) -> None:
    """Estimate every training in every setting, several at a time, and write what there is after each."""
    deadline_s = time.monotonic() + arguments.seconds
    environment = describe_environment("cuda" if "card" in arguments.setting else "cpu")
    results: dict[str, Any] = {"settings": {}}
    for setting in arguments.setting:
        results["settings"][setting] = {"environment": environment, "torch": driver_seen(setting), "trainings": {}}
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)

    lock = Lock()

    def one(wanted: tuple[str, str]) -> None:
        setting, training = wanted
        left_s = deadline_s - time.monotonic()
        try:
            found = estimate(training, setting, max(left_s, 1.0), arguments.keep)
        except Exception as error:  # one estimate must not cost the others theirs
            found = {"failed": [f"{type(error).__name__}: {error}"[:300]]}
        with lock:
            results["settings"][setting]["trainings"][training] = found
            write_results(arguments.out, results)
        print(setting, training, found, flush=True)

    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(one, [(setting, training) for training in TRAININGS for setting in arguments.setting]))


def join(places: list[Path], out: Path) -> None:
    """Write several files as one, with each training's verdict: which settings give other answers than the first."""
    settings: dict[str, Any] = {}
    for place in places:
        settings |= json.loads(place.read_text(encoding="utf-8"))["settings"]
    compared = {training: compare(training, settings) for training in TRAININGS}
    equal = {name: one["equal"] for name, one in compared.items()}
    write_results(out, {"all_equal": all(equal.values()), "compared": compared, "settings": settings})
    print(json.dumps(equal, indent=1))


def compare(training: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return whether all settings give the same peaks, whether they take the same blocks in order, and what differs."""
    answers = {name: one["trainings"].get(training, {}) for name, one in settings.items()}
    differing = {}
    for key in (*PEAKS, *REQUESTS):
        values = {name: answer.get(key) for name, answer in answers.items()}
        if len(set(values.values())) != 1 or None in values.values():
            differing[key] = values
    return {
        "equal": not differing.keys() & set(PEAKS),
        "same_requests": not differing.keys() & set(REQUESTS),
        "differing": differing,
    }


def main() -> None:
    """Estimate or join."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=["cpu"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write every request of every estimate here")
    parser.add_argument("--join", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=150.0)
    arguments = parser.parse_args()
    if arguments.join:
        join(arguments.join, arguments.out)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
