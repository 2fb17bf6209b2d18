"""Kernels of replayed CUDA graphs are on the modules that were captured, and nothing else of the program changes."""

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

from gpuledger import Rank, load  # noqa: E402
from gpuledger.analyze.step.steps import step_times  # noqa: E402
from gpuledger.analyze.step.times import break_down_time  # noqa: E402

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(512)
        self.first, self.second = nn.Linear(512, 2048), nn.Linear(2048, 512)

    def forward(self, x):
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))

model = nn.Sequential(*[Block() for _ in range(3)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
x = torch.randn(2048, 512, device="cuda")

def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
EAGER = """
for _ in range(12):
    loss = step()
"""
WARM = """
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(side)
"""
WHOLE = f"""{WARM}
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(12):
    graph.replay()
"""
CALLABLES = """
model = torch.cuda.make_graphed_callables(model, (torch.zeros_like(x),))
for _ in range(12):
    loss = step()
"""
PARTS = f"""{WARM}
import gpuledger
graphs, y = [], x
for block in model:
    graphs.append(torch.cuda.CUDAGraph())
    with torch.cuda.graph(graphs[-1]), torch.no_grad():
        y = block(y)
for _ in range(12):
    for graph in graphs:
        graph.replay()
    gpuledger.step()
loss = y.sum()
"""
SERVING = """
import gc
del optimizer
gc.collect()
model = model.eval()
graphs, pool = {}, None
with torch.inference_mode():
    for rows in (2048, 512, 128):
        static = torch.zeros(rows, 512, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            y = model(static)
        pool = pool or graph.pool()
        graphs[rows] = graph, static, y
    for number in range(300):
        graph, static, y = graphs[(2048, 512, 128)[number % 3]]
        static.copy_(x[: len(static)])
        graph.replay()
    loss = y.sum()
"""
END = "torch.cuda.synchronize()\nprint(loss.item(), torch.cuda.max_memory_allocated())\n"


def run(place: Path, body: str, *options: str) -> tuple[str, str, Rank]:
    """Return what a program prints by itself and recorded, and the recording."""
    script = str(write_script(place, HEAD + body + END))
    env = environment(GPULEDGER_PASSES="", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    commands = [sys.executable, script], [*GPULEDGER, "run", *options, "--out", "run", script]
    told = []
    for command in commands:
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    return told[0], told[1], load(place / "run.ledger").rank()


def kernel_share(rank: Rank, *names: str) -> dict[str, float]:
    """Return the share of each value in the time of the step."""
    times = break_down_time(rank)
    assert times is not None
    found: dict[str, float] = {}
    for one in times.accounts:
        key = " ".join(str(getattr(one, name)) for name in names)
        found[key] = found.get(key, 0.0) + one.time_ns / times.work_ns
    return found


@pytest.mark.parametrize("body", [WHOLE, CALLABLES], ids=["a whole step", "graphed callables"])
def test_kernels_of_replays_are_on_captured_modules(body: str, tmp_path: Path) -> None:
    for name in ("eager", "captured"):
        (tmp_path / name).mkdir()
    asked = "--passes", "memory,time"
    *_, eager = run(tmp_path / "eager", EAGER, *asked)
    bare, recorded, captured = run(tmp_path / "captured", body, *asked)
    assert recorded == bare
    assert not any("could not be matched" in note for note in captured.manifest.notes), captured.manifest.notes
    assert captured.manifest.steps_seen == (16 if body == WHOLE else 12)
    of_eager, of_captured = (kernel_share(rank, "module", "phase") for rank in (eager, captured))
    blocks = {key for key in of_eager if "." in key and of_eager[key] > 0.02}
    assert len(blocks) == 12, of_eager  # forward and backward of two layers in each of three blocks
    for key in blocks:
        assert of_captured.get(key, 0.0) == pytest.approx(of_eager[key], rel=0.25, abs=0.01), (of_eager, of_captured)


def test_by_default_a_capture_ends_the_timing_measurement(tmp_path: Path) -> None:
    """After three steps, as in PyTorch's documentation, it is in the first profiled one."""
    bare, recorded, rank = run(tmp_path, WHOLE.replace("range(12)", "range(60)"))
    assert recorded == bare
    assert rank.manifest.time_steps is None
    assert any("uses CUDA graphs" in said for said in rank.manifest.left_out), rank.manifest.left_out


def test_replays_of_a_server_are_steps_and_its_warm_up_is_not_the_step_time(tmp_path: Path) -> None:
    bare, recorded, rank = run(tmp_path, SERVING)
    assert recorded == bare
    assert rank.manifest.steps_seen == 3 * 4 + 300
    kinds = rank.table("steps").column("kind").to_pylist()
    assert (kinds.count("call"), kinds.count("replay")) == (12, len(kinds) - 12)
    times = step_times(rank)
    assert 10 <= times.count <= kinds.count("replay"), times


@pytest.mark.parametrize("passes", ["memory,time", "memory,energy"])
def test_replays_of_a_server_are_measured(passes: str, tmp_path: Path) -> None:
    more = SERVING.replace("range(300)", "range(30000)")
    steps = "13:14" if "time" in passes else "1:3"
    bare, recorded, rank = run(tmp_path, more, "--steps", steps, "--passes", passes)
    assert recorded == bare
    assert rank.manifest.steps_seen == 3 * 4 + 30000
    if "time" in passes:
        shares = kernel_share(rank, "module")
        assert sum(share for module, share in shares.items() if module) > 0.8, shares
    else:
        edges = rank.manifest.energy_pass
        assert edges is not None
        assert edges.first_step is not None
        assert edges.first_step > 13, edges  # after the captures and the first replay


def test_parts_of_a_model_in_graphs_of_their_own(tmp_path: Path) -> None:
    bare, recorded, rank = run(tmp_path, PARTS, "--passes", "memory,time")
    assert recorded == bare
    shares = kernel_share(rank, "module")
    assert sum(share for module, share in shares.items() if module) > 0.99, shares
    for number in range(3):
        of_block = sum(share for module, share in shares.items() if module.startswith(str(number)))
        assert of_block == pytest.approx(1 / 3, rel=0.1), shares
