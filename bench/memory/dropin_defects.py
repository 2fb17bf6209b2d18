"""Compares the old PyTorch memory profiler with the drop-in on small trainings with known results.

    git clone https://github.com/tbd-ai/tbd-tools
    python bench/memory/dropin_defects.py --old tbd-tools/pytorch_mem_profiler --out defects.json

Every case runs twice, each time in a process of its own, on CPU tensors: once importing the old tool, once gpuledger's
drop-in. What both print has one format, so both tables are read by the same lines of code. The right number of a line
comes from the shapes of the case. Nothing but the import differs between the two programs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lib"))

from environment import describe_environment, write_results

WIDTH, BATCH = 1000, 2000
WEIGHT_MB = round(2 * (WIDTH * WIDTH + WIDTH) * 4 / 1e6)
MAP_MB = BATCH * WIDTH * 4 / 1e6
CELL = re.compile(r"^(.*?)\.{2,}\s*(\d+) MB$")

TRAINING = """
import warnings; warnings.simplefilter("ignore")
import torch
from torch import nn
{import_line}
model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
profiler = memory_profiler(model)
for _ in range(4):
    result = model(torch.randn({batch}, 1000))
    while not isinstance(result, torch.Tensor):
        result = result[0]
    loss = result.sum()
    optimizer.zero_grad(set_to_none={set_to_none})
    loss.backward()
    optimizer.step()
    profiler.record_stats()
    del result, loss
print("hooks left:", sum(len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules()))
"""
IMPORTS = {
    "old": "from pytorch_mem_profiler import *",
    "ours": "from gpuledger import memory_profiler",
}
LAYERS = "nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU())"


@dataclass(frozen=True)
class Case:
    """One training and the line of the table that it is about; ``expected_mb`` holds in every iteration."""

    name: str
    line: str
    expected_mb: tuple[int, int]
    model: str = LAYERS
    batch: int = BATCH
    set_to_none: bool = True


EXACT = (WEIGHT_MB, WEIGHT_MB)
LSTM = "nn.Sequential(nn.Linear(1000, 1000), nn.LSTM(1000, 248))"
TIED = f"(lambda net: (setattr(net[2], 'weight', nn.Parameter(net[0].weight.data)), net)[1])({LAYERS})"
CASES = (
    Case("weight gradients where zero_grad sets to None", "Total layer weight gradient usage", EXACT),
    Case("weight gradients where zero_grad fills", "Total layer weight gradient usage", EXACT, set_to_none=False),
    Case("intermediate gradients do not grow", "Intermediate gradients", (round(MAP_MB), round(2 * MAP_MB))),
    Case("feature maps do not add up", "Total feature map usage", (round(3 * MAP_MB), round(4 * MAP_MB))),
    Case("a module that returns a tuple", "Total layer weight usage", (9, 9), LSTM, 10),
    Case("weights that are tied", "Total layer weight usage", (4, 4), TIED, 10),
)


def run(case: Case, which: str, old: Path) -> dict[str, Any]:
    """Return what the case's line said in each iteration, or the error that ended it, and the hooks left behind."""
    source = TRAINING.format(
        import_line=IMPORTS[which],
        model=case.model,
        batch=case.batch,
        set_to_none=case.set_to_none,
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(old), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-c", source], cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
    iterations = [text.partition("At the iteration's peak")[0] for text in done.stdout.split("Memory Usage for")[1:]]
    lines = [line for text in iterations for line in text.splitlines()]
    cells = [found.groups() for found in map(CELL.match, lines) if found]
    hooks = re.search(r"hooks left: (\d+)", done.stdout)
    return {
        "mb": [int(value) for name, value in cells if name.strip() == case.line],
        "hooks_left": int(hooks[1]) if hooks else None,
        "error": None if done.returncode == 0 else done.stderr.strip().splitlines()[-1],
    }


def is_right(case: Case, found: dict[str, Any]) -> bool:
    """Return whether the line is right in every iteration, and nothing was left behind."""
    low, high = case.expected_mb
    return found["error"] is None and len(found["mb"]) == 4 and all(low <= value <= high for value in found["mb"])


def main() -> None:
    """Run all cases and write what both tools said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, required=True, help="folder that holds pytorch_mem_profiler.py")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not (options.old / "pytorch_mem_profiler.py").exists():
        parser.error(f"{options.old}: no pytorch_mem_profiler.py there")
    rows = []
    for case in CASES:
        found = {which: run(case, which, options.old.resolve()) for which in IMPORTS}
        row = {"case": case.name, "line": case.line, "expected_mb": case.expected_mb, **found}
        row |= {f"{which}_right": is_right(case, found[which]) for which in IMPORTS}
        rows.append(row)
        said = {which: found[which]["error"] or found[which]["mb"] for which in IMPORTS}
        low, high = case.expected_mb
        print(f"{case.name:46} right: {low} to {high} MB   old: {said['old']}   ours: {said['ours']}")
    write_results(options.out, {**describe_environment("cpu"), "cases": rows})


if __name__ == "__main__":
    main()
