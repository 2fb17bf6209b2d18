"""Code of Inductor is divided among its modules if a backend of the program's own calls it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from quick import quick_python
from recorded import read_recorded

from gpuledger.model.run import read_run

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("compiler_caches")]

WIDTH, ROWS = 64, 256
PROGRAM = f"""
import sys
import torch
import gpuledger
from torch import nn

model = nn.Sequential(nn.Linear({WIDTH}, {WIDTH}), nn.ReLU(), nn.Linear({WIDTH}, {WIDTH}))
with gpuledger.record(out=sys.argv[1], steps=(2, 3), devices="cpu"):
    BACKEND
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        call(torch.ones({ROWS}, {WIDTH})).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
IMPORTED = """from torch._inductor.compile_fx import compile_fx
    call = torch.compile(model, backend=lambda graph, inputs: compile_fx(graph, inputs))
"""
NOT_IMPORTED = """call = torch.compile(model, backend=lambda graph, inputs: torch._inductor.compile(graph, inputs))
"""
OTHER = """call = torch.compile(model, backend="eager")
"""


def run(python: str, path: Path, backend: str, more: str = "") -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("BACKEND", backend) + more
    return subprocess.run([python, "-c", program, str(path)], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("backend", [IMPORTED, NOT_IMPORTED], ids=["imported", "not imported"])
def test_a_backend_of_the_programs_own_that_calls_inductor(backend: str, tmp_path: Path) -> None:
    run(quick_python(), tmp_path / "own", backend)
    found = read_recorded(read_run(tmp_path / "own.ledger").rank())
    made = {block.module for block in found.blocks if block.phase in ("forward", "backward") and block.step == 3}
    assert {"0", "1", "2"} - made <= {"0"}, made  # its output is changed in place by the ReLU
    assert found.manifest.notes == ()


def test_inductor_is_not_imported_for_another_backend(tmp_path: Path) -> None:
    """In a Python of its own: with Dynamo, a fork has all of the compiler."""
    done = run(sys.executable, tmp_path / "other", OTHER, "print('torch._inductor.compile_fx' in sys.modules)")
    assert done.stdout.splitlines()[-1] == "False"
