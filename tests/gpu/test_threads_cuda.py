"""Programs on a GPU that train or infer in other threads than the one that imported PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]

import gpuledger  # noqa: E402
from gpuledger.analyze.step.times import break_down_time  # noqa: E402

HEAD = """
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
"""
TRAINING = """
def train():
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(20):
        x = torch.randn(1024, 512, device="cuda")
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    results.append(loss.item())

results = []
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
SERVER = """
@torch.inference_mode()
def infer(number):
    x = torch.randn(1024, 512, generator=torch.Generator().manual_seed(number))
    return net(x.cuda()).sum().item()

with ThreadPoolExecutor(4) as pool:
    results = list(pool.map(infer, range(200)))
"""
END = """
stacks = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
print(json.dumps([results, len(stacks), "torch._inductor" in sys.modules]))
"""


@pytest.mark.parametrize("body", [TRAINING, SERVER], ids=["training", "server"])
def test_steps_in_other_threads_are_timed(tmp_path: Path, body: str) -> None:
    program, out = tmp_path / "train.py", tmp_path / "train.ledger"
    program.write_text(HEAD + body + END)
    recorded = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(out), str(program)]
    printed = []
    for command in ([sys.executable, str(program)], recorded):
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr == ""
        printed.append(json.loads(done.stdout))
    assert printed[0] == printed[1]
    rank = gpuledger.load(out).rank(0)
    times = break_down_time(rank)
    assert times is not None, rank.manifest.left_out
    assert not times.on_host
    if body is TRAINING:
        assert {("0", "forward"), ("2", "backward")} <= {(one.module, one.phase) for one in times.accounts}
        assert times.unplaced_ns == 0
        assert sum(line.time_ns for line in times.lines if not line.line) <= 0.02 * times.work_ns
