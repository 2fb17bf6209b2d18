"""Programs with transforms of ``torch.func`` need the same memory on a GPU when they are recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
from programs import GPULEDGER, environment, write_script  # noqa: E402

import gpuledger  # noqa: E402

ENVIRONMENT = environment(GPULEDGER_PASSES="", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
SAMPLES = """
    import torch
    from torch.func import functional_call, grad, vmap
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(64, 64, device="cuda")
    def loss_of(weights, one):
        return functional_call(net, weights, (one,)).square().mean()
    for step in range(30):
        weights = {name: one.detach() for name, one in net.named_parameters()}
        each = vmap(grad(loss_of), in_dims=(None, 0))(weights, x)
        for name, one in net.named_parameters():
            one.grad = each[name].mean(0)
        optimizer.step()
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""
NUMBERS = """
    import torch
    from torch.func import jacrev, vmap
    torch.manual_seed(0)
    points = torch.randn(256, 32, device="cuda")
    for _ in range(100):
        points = points * 0.999 + 0.001
    def force(x):
        return torch.tanh(x).pow(2).sum() * x
    for _ in range(100):
        slopes = vmap(jacrev(force))(points)
        points = points - 0.01 * slopes.diagonal(dim1=1, dim2=2)
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
"""


@pytest.mark.parametrize("script", [SAMPLES, NUMBERS], ids=["gradients of samples", "without modules"])
def test_the_peak_is_that_of_the_program(tmp_path: Path, script: str) -> None:
    program = write_script(tmp_path, script)
    run = [*GPULEDGER, "run", "-q", "--out", str(tmp_path / "run.ledger"), str(program)]
    printed = []
    for command in ([sys.executable, str(program)], run):
        done = subprocess.run(
            command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        printed.append(done.stdout.splitlines()[0])
    assert printed[0] == printed[1]
    rank = gpuledger.load(tmp_path / "run.ledger").rank(0)
    assert rank.manifest.time_steps or rank.manifest.timed_program  # the measurement that would keep tensors
