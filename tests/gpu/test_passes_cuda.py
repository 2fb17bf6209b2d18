"""The default of ``gpuledger run`` on a GPU: bytes, joules and milliseconds, and a program that notices nothing."""

from __future__ import annotations

import json
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

from gpuledger import load  # noqa: E402
from gpuledger.analyze.step.energy import break_down_energy  # noqa: E402
from gpuledger.analyze.step.times import break_down_time  # noqa: E402
from gpuledger.analyze.step.work import names_of, read_work  # noqa: E402
from gpuledger.collect.passes.outcomes import PROFILED_ENERGY  # noqa: E402

TRAIN = """
    import torch, gpuledger
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 2048)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(4096, 2048, device="cuda")
    for step in range(STEPS):
        with gpuledger.scope("body"):
            y = model(x)
        with gpuledger.scope("loss"):
            loss = y.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        EXTRA
    torch.cuda.synchronize()
    print(loss.item(), torch.cuda.max_memory_allocated())
"""
GRAPH = """if step == GRAPH_AT:
            torch.cuda.synchronize()
            graph, held = torch.cuda.CUDAGraph(), torch.zeros(64, device="cuda")
            with torch.cuda.graph(graph):
                held += 1
            graph.replay(); torch.cuda.synchronize(); print("graph", held.sum().item())"""
PROFILE = """if step == 40:
            theirs = torch.profiler.profile(); theirs.__enter__()
        if step == 42:
            torch.cuda.synchronize(); theirs.__exit__(None, None, None)
            print("theirs", sum(e.key == "aten::addmm" and e.count for e in theirs.key_averages()))"""


def run(place: Path, steps: int, extra: str = "pass", *options: str) -> tuple[str, str]:
    """Return what a program prints by itself, and recorded."""
    script = str(write_script(place, TRAIN.replace("STEPS", str(steps)).replace("EXTRA", extra)))
    env = environment(GPULEDGER_PASSES="", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    said = []
    for before in ([sys.executable], [*GPULEDGER, "run", "--out", "card", "--force", *options]):
        done = subprocess.run([*before, script], cwd=place, capture_output=True, text=True, env=env, check=True)
        said.append(done.stdout)
    return said[0], said[1]


def test_a_run_without_options_has_every_currency_and_changes_nothing(tmp_path: Path) -> None:
    bare, recorded = run(tmp_path, 600)
    assert bare == recorded
    rank = load(tmp_path / "card.ledger").rank()
    times, joules = break_down_time(rank), break_down_energy(rank)
    assert times is not None
    assert joules is not None
    assert sum(account.energy_j for account in joules.accounts) == pytest.approx(joules.step_energy_j, rel=1e-6)
    assert times.unplaced_ns <= 0.002 * times.work_ns
    asked = [*GPULEDGER, "show", "card.ledger", "--by", "scope"]
    env = environment(PYTHONPATH=os.environ.get("PYTHONPATH", ""), COLUMNS="160")
    shown = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, env=env, check=True).stdout
    header = next(line for line in shown.splitlines() if line.startswith("by scope"))
    (body,) = (line for line in shown.splitlines() if line.startswith("body "))
    for column in ("forward ms", "backward ms", "all ms", " J"):
        end = header.index(column) + len(column)
        assert body[:end].split()[-1].replace(".", "").isdecimal(), column


def test_products_have_the_flops_of_their_shapes(tmp_path: Path) -> None:
    """Two products forward, three backward: the data needs no gradient."""
    run(tmp_path, 600)
    rank = load(tmp_path / "card.ledger").rank()
    work = read_work(rank)
    assert work is not None
    names = names_of(rank)
    is_product = [names.get(number) in ("aten::mm", "aten::addmm") for number in work.operator_id.tolist()]
    assert work.flops[is_product].sum() / work.steps == pytest.approx(5 * 2 * 4096 * 2048 * 8192)
    found = break_down_energy(rank)
    assert found is not None
    assert "FLOPs and bytes" in found.method


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_graph_captured_in_any_pass_is_the_programs(at: int, tmp_path: Path) -> None:
    bare, recorded = run(tmp_path, 30, GRAPH.replace("GRAPH_AT", str(at)), "--passes", "memory,time")
    assert bare == recorded
    assert "graph 64.0" in recorded


def test_a_profiler_of_the_programs_is_complete_during_the_energy_measurement(tmp_path: Path) -> None:
    bare, recorded = run(tmp_path, 600, PROFILE)
    assert bare == recorded
    assert "theirs 0" not in recorded
    notes = json.loads((tmp_path / "card.ledger" / "rank-0" / "manifest.json").read_text())["notes"]
    # The process of the tests can have a CUDA context of its own, and the GPU can become warmer: both are noted.
    others = ("Another process used", "cuda:0 grew")
    assert [note for note in notes if not note.startswith(others)] == [PROFILED_ENERGY]
