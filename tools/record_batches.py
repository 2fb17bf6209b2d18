"""Record steps of a small and of a large batch on a GPU: tests/recordings/batches/steps.npz.

A table has the requested bytes of each allocation of a step, and the id of its module. `small` is a step as a failing
run has recorded it. `large` is the step that would fail. Ends within 2 minutes.

Usage: python tools/record_batches.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuledger.analyze.posting.device import device_histories
from gpuledger.model.accounts import CATEGORIES
from gpuledger.model.journal.reading import read_journal

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "tests" / "recordings" / "batches" / "steps.npz"
PROGRAM = ROOT / "bench" / "lib" / "two_batches.py"
KINDS = ["mlp-both", "mlp-bf16", "attention-bf16", "scores-bf16", "convolutions-bf16", "attention-compiled"]
STEPS = {"small": 2, "large": 21}
TRIAL = "torch/_ops.py"
"""The compiler measures its choices by operators that it calls from here. Their memory is freed again."""


def read_step(run: Path, step: int) -> NDArray[np.int64]:
    """Return requested bytes and module of each allocation of a recorded step."""
    journal = read_journal(run / "rank-0" / "journal")
    history = device_histories(journal)[0]
    lives, owners = history.lives, history.owners
    mine = np.flatnonzero((owners.step == step) & (lives.alloc_index >= 0))
    mine = mine[np.argsort(lives.alloc_index[mine], kind="stable")]
    kept = [
        one
        for one in mine.tolist()
        if CATEGORIES[owners.category[one]] != "temporary"
        or not journal.stacks[owners.stack_id[one]][0][0].endswith(TRIAL)
    ]
    return np.stack((lives.requested_bytes[kept], owners.module_id[kept]))


def main() -> None:
    """Record all."""
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(len(KINDS)) as several:

        def record(kind: str, name: str) -> NDArray[np.int64]:
            run, step = Path(directory) / f"{kind}-{name}.ledger", STEPS[name]
            words = ["run", "-q", "--steps", f"{step}:{step}", "--out", str(run), str(PROGRAM), kind]
            subprocess.run([sys.executable, "-m", "gpuledger", *words], check=True)
            return read_step(run, step)

        tables = {f"{kind}.{name}": several.submit(record, kind, name) for kind in KINDS for name in STEPS}
        np.savez_compressed(OUT, **{name: one.result() for name, one in tables.items()})


if __name__ == "__main__":
    main()
