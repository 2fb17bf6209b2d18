"""Lines of blocks that a program allocates on a GPU after the recorded steps."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]

import gpuledger  # noqa: E402
from gpuledger.analyze.memory.failures.failed_request import read_failed_state  # noqa: E402

TRAINING = """
import torch
torch.cuda.set_per_process_memory_fraction((3 << 30) / torch.cuda.mem_get_info()[1])
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    optimizer.zero_grad()
    model(torch.randn(256, 512, device="cuda")).square().mean().backward()
    optimizer.step()
for _ in range(30):
    step()
def block():
    return torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
kept = []
"""


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        ("while True: kept.append(block())", "return torch.empty"),
        ("while True: kept.append(block()); step()", "return torch.empty"),
        ("model.eval()\nwhile True: kept.append(model(torch.randn(1 << 15, 512, device='cuda')))", "while True"),
    ],
    ids=["after the last step", "between steps", "in an evaluation"],
)
@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_the_line_that_holds_most_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, line: str, settings: str
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", settings)
    program, out = tmp_path / "train.py", tmp_path / "oom.ledger"
    program.write_text(textwrap.dedent(TRAINING) + ending + "\n")
    number = 1 + next(at for at, text in enumerate(program.read_text().splitlines()) if line in text)
    command = [sys.executable, "-m", "gpuledger", "run", "-q", "--out", str(out), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1, done.stderr[-3000:]
    assert done.stderr.strip().splitlines()[-1].startswith("torch.OutOfMemoryError")
    rank = gpuledger.load(out).rank(0)
    state = read_failed_state(rank, rank.manifest.oom[0])
    assert state is not None
    assert next(iter(state.lines)).startswith(f"train.py:{number} ")
    assert state.line_known_bytes > 0.9 * state.allocated_bytes
