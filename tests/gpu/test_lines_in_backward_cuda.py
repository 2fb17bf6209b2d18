"""Times by source line of Python code that backward calls on a GPU: hooks, optimizers in hooks, autograd functions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from backward_programs import SQUARE, UPDATES_IN_HOOKS

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]

import gpuledger  # noqa: E402
from gpuledger.analyze.step.times import break_down_time  # noqa: E402

TRAINING = f"""
import torch
torch.manual_seed(0)
{SQUARE}
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 1024)).cuda()
{UPDATES_IN_HOOKS}
data = torch.randn(4096, 1024, device="cuda")
for _ in range(30):
    loss = Square.apply(model(data)).mean()  # forward
    loss.backward()
torch.cuda.synchronize()
print([float(weight.double().sum()) for weight in model.parameters()])
"""


def test_what_backward_calls_is_on_its_own_line(tmp_path: Path) -> None:
    program, out = tmp_path / "train.py", tmp_path / "train.ledger"
    program.write_text(TRAINING)
    bare = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=180, check=True)
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(out), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout == bare.stdout
    found = break_down_time(gpuledger.load(out).rank(0))
    assert found is not None
    assert sum(line.time_ns for line in found.lines) == pytest.approx(found.work_ns)
    lines = {(line.line.rpartition("/")[2].split(" ")[0], line.phase) for line in found.lines}
    source = enumerate(program.read_text().splitlines(), 1)
    places = {line.rpartition("# ")[2]: f"train.py:{at}" for at, line in source if "# " in line}
    updates = {(places["mean"], "backward"), (places["change"], "backward"), (places["step"], "optimizer")}
    assert updates | {(places["own backward"], "backward"), (places["forward"], "backward")} <= lines
    assert (places["forward"], "optimizer") not in lines
