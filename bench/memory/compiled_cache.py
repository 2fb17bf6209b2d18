"""Measures which bytes of compiled trainings are on another module if their code is from a cache of a bare run.

Each model is trained three times, in processes of their own: bare, which fills Inductor's cache; recorded with that
cache; and recorded without a cache. The modules of the last two are compared at the peak, the second with the third.

Usage: python bench/memory/compiled_cache.py --out bench/memory/results/cpu/compiled_cache.json
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

LIB = Path(__file__).resolve().parents[1] / "lib"
sys.path.insert(0, str(LIB))

from cached_train import MODELS
from environment import describe_environment, write_results

import gpuledger

MOST_ELSEWHERE_FRAC = 0.01
"""The goal."""


def by_module(run: Path) -> Counter[str]:
    """Return the bytes of each module at the highest peak."""
    found: Counter[str] = Counter()
    for account in gpuledger.breakdown(gpuledger.load(run), by=("module",)).accounts:
        found[account.module] += account.bytes
    return found


def measure(name: str, directory: Path) -> dict[str, Any]:
    """Train one model bare and recorded; return the share of the peak's bytes that is on another module."""
    cache = {
        "TORCHINDUCTOR_CACHE_DIR": str(directory / f"{name}-inductor"),
        "XDG_CACHE_HOME": str(directory / f"{name}-own"),
        "GPULEDGER_PASSES": "memory",
    }
    words = [str(LIB / "cached_train.py"), name]
    record = ["-m", "gpuledger", "run", "-q", "--devices", "cpu", "--out"]
    without = {**cache, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    cached, uncached = (directory / f"{name}-{kind}.ledger" for kind in ("cached", "uncached"))
    for environment, options in (
        (cache, []),
        (cache, [*record, str(cached)]),
        (without, [*record, str(uncached)]),
    ):
        command = [sys.executable, *options, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment}, cwd=directory)
    here, there = by_module(cached), by_module(uncached)
    differences = {module: here[module] - there[module] for module in sorted(here | there)}
    rank = gpuledger.load(cached).rank(0).manifest
    return {
        "peak_allocated_bytes": there.total(),
        "elsewhere_bytes": (here - there).total(),
        "elsewhere_frac": (here - there).total() / there.total(),
        "difference_bytes": {module: number for module, number in differences.items() if number},
        "notes": list(rank.notes),
    }


def main() -> None:
    """Measure every model; write the figures and print a line for each. Exit status 1 if one is above 1 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=tuple(MODELS), choices=tuple(MODELS))
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = options.folder or Path(scratch)
        place.mkdir(parents=True, exist_ok=True)
        found = {}
        for name in options.models:
            found[name] = measure(name, place.resolve())
            print(f"{name}: {found[name]['elsewhere_frac']:.2%} of the peak on another module", flush=True)
    write_results(options.out, {"environment": describe_environment("cpu"), "models": found})
    sys.exit(any(one["elsewhere_frac"] > MOST_ELSEWHERE_FRAC for one in found.values()))


if __name__ == "__main__":
    main()
