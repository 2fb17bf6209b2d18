"""A memory pass that is asked for while a program trains on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
from torch import nn  # noqa: E402

from gpuledger import load  # noqa: E402
from gpuledger.collect.launch.settings import RecordSettings  # noqa: E402
from gpuledger.collect.session.on_demand import STEPS, Listener  # noqa: E402
from gpuledger.live.watched_run import WatchedRun  # noqa: E402
from gpuledger.model.run_directory import write_json  # noqa: E402


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(32, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_pass_on_demand_uses_the_allocators_history_and_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "long.ledger"
    place.mkdir()
    write_json(place / "manifest.json", {"schema_version": 1, "status": "running"})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    listener = Listener(RecordSettings(place))
    watched = WatchedRun(place)
    try:
        train(model, optimizer, 3)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        train(model, optimizer, 3)
        bare_bytes = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        assert watched.ask()
        train(model, optimizer, 20)
        assert torch.cuda.max_memory_allocated() == bare_bytes
    finally:
        listener.stop()
        watched.close()
    run = load(tmp_path / "long-asked-1.ledger")
    rank = run.rank()
    assert run.manifest.status == "complete"
    assert rank.manifest.recorder_name == "cuda-history"
    assert [check for check in rank.manifest.checks if not check.ok] == []
    assert [row["step"] for row in rank.table("steps").to_pylist() if row["recorded"]] == list(range(1, STEPS + 1))
    categories = {row["category"] for row in rank.table("blocks").to_pylist()}
    assert {"weight", "gradient", "optimizer_state", "activation"} <= categories
