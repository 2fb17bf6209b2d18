"""Source lines of kernels in a program on a GPU of which a part is compiled."""

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

TRAINING = """
import json
import torch
from torch import nn

torch.manual_seed(0)

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        y = self.up(x)
        z = y.sigmoid() * y  # gate
        return self.down(z)

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(512, 512)

    def forward(self, x):
        y = self.mix(x.view(16, 16, -1, 512))
        return (y * y.sigmoid()).flatten(0, 2)  # head

body, head = Gated().cuda(), Head().cuda()
compiled = torch.compile(body, mode=MODE)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()])
for _ in range(16):
    x = torch.randn(8192, 512, device="cuda")
    noisy = x + 0.1 * torch.randn_like(x)  # noise
    loss = (head(compiled(noisy).clone()) - x).square().mean()  # loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
print(json.dumps([loss.item(), graphs, torch.cuda.max_memory_allocated()]))
"""


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_eager_code_beside_compiled_code_has_lines_and_takes_no_more_memory(tmp_path: Path, mode: str | None) -> None:
    """A graph of a whole region is compiled once, also in the step in which lines are recorded."""
    program, out = tmp_path / "train.py", tmp_path / "train.ledger"
    program.write_text(TRAINING.replace("MODE", repr(mode)))
    passes = ["--passes", "memory,time"] if mode else []
    recorded = [sys.executable, "-m", "gpuledger", "run", "-q", *passes, "--out", str(out), str(program)]
    printed = []
    for command in ([sys.executable, str(program)], recorded):
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        printed.append(json.loads(done.stdout))
    assert printed[0] == printed[1]
    found = break_down_time(gpuledger.load(out).rank(0))
    assert found is not None
    texts = program.read_text().splitlines()
    phases = set()
    for line in found.lines:
        _, _, rest = line.line.partition("train.py:")
        if rest:
            phases.add((texts[int(rest.partition(" ")[0]) - 1].rpartition("# ")[2], line.phase))
    eager = {(text, phase) for text in ("head", "loss") for phase in ("forward", "backward")}
    assert eager | {("gate", "forward")} <= phases
    assert ("noise", "between") in phases
    assert sum(line.time_ns for line in found.lines) == pytest.approx(found.work_ns)
    assert sum(line.time_ns for line in found.lines if not line.line) <= 0.02 * found.work_ns
