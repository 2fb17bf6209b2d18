"""Scopes and the drop-in profiler on a real GPU, where backward runs in a thread of its own."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import gpuledger  # noqa: E402


def scopes_by_floats(rank: Any, phase: str) -> dict[int, set[str]]:
    """Return the scopes of the blocks of each number of floats that were made in ``phase``."""
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    found: dict[int, set[str]] = {}
    for block in rank.table("blocks").to_pylist():
        if block["phase"] == phase and block["alloc_index"] >= 0:
            found.setdefault(block["requested_bytes"] // 4, set()).add(names.get(block["scope_id"], ""))
    return found


def floats(count: int) -> torch.Tensor:
    return torch.ones(count, device="cuda", requires_grad=True)


def test_backward_in_its_own_thread_goes_to_the_scopes_of_forward(tmp_path: Path) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        with gpuledger.scope("inner"):
            return x.sin().exp()

    torch.ones(1, device="cuda").sum()
    with gpuledger.record(out=tmp_path / "run") as recording:
        for _ in range(2):
            with gpuledger.scope("a"):
                first = floats(10_001).sin().exp()
            plain = floats(10_003).sin().exp()
            with gpuledger.scope("b"):
                with gpuledger.scope("c"):
                    nested = floats(10_005).sin().exp()
                again = checkpoint(inner, floats(10_007) * 2, use_reentrant=False)
            (first.sum() + plain.sum() + nested.sum() + again.sum()).backward()
            del first, plain, nested, again
    rank = recording.run().rank()
    assert rank.manifest.recorder_name == "cuda-history"
    assert [check for check in rank.manifest.checks if not check.ok] == []
    found = scopes_by_floats(rank, "backward")
    assert {count: found[count] for count in (10_001, 10_003, 10_005)} == {10_001: {"a"}, 10_003: {""}, 10_005: {"b/c"}}
    assert found[10_007] == {"b", "b/inner"}


def test_kernels_go_to_the_scopes_of_forward(tmp_path: Path) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        with gpuledger.scope("inner"):
            return x.tanh()

    torch.ones(1, device="cuda").sum()
    with gpuledger.record(out=tmp_path / "run", steps=(1, 1), passes="memory,time") as recording:
        for _ in range(14):
            with gpuledger.scope("a"):
                first = floats(10_001).sin()
            plain = floats(10_003).log()
            with gpuledger.scope("b"):
                with gpuledger.scope("c"):
                    nested = floats(10_005).sigmoid()
                again = checkpoint(inner, floats(10_007) * 2, use_reentrant=False)
            loss = first.sum() + plain.sum() + nested.sum() + again.sum()
            with gpuledger.scope("backward"):
                loss.backward()
            recording.step()
    rank = recording.run().rank()
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    found: dict[tuple[str, str], set[str]] = {}
    for row in rank.table("spans").to_pylist():
        if row["kind"] == "kernel" and row["operator_id"] is not None:
            key = names[row["operator_id"]], "backward" if row["phase"] == "backward" else ""
            found.setdefault(key, set()).add(names.get(row["scope_id"], ""))
    expected = {
        **{("aten::sin", ""): "a", ("aten::log", ""): "", ("aten::sigmoid", ""): "b/c", ("aten::tanh", ""): "b/inner"},
        **{("aten::cos", "backward"): "a", ("aten::div", "backward"): "backward"},
        **{("aten::sigmoid_backward", "backward"): "b/c", ("aten::tanh_backward", "backward"): "b/inner"},
        ("aten::tanh", "backward"): "b/inner",  # computed again
    }
    assert {key: found.get(key) for key in expected} == {key: {scope} for key, scope in expected.items()}


@pytest.mark.parametrize("set_to_none", [True, False])
def test_the_drop_in_s_peak_is_torch_s_own_and_every_cached_byte_has_a_line(
    set_to_none: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    gc.collect()
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000), nn.ReLU()).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    profiler = gpuledger.memory_profiler(model, print_period=2, csv=True)
    theirs = (0, 0)
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        loss = model(torch.randn(64, 1000, device="cuda")).sum()
        optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        theirs = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        profiler.record_stats()
    profiler.epoch_end()
    report = profiler.last
    assert report is not None
    (device,) = report.devices
    assert (device.allocated_bytes, device.peak_cached_bytes) == theirs
    assert device.current_cached_bytes == torch.cuda.memory_reserved()
    assert sum(size for _, size in device.at_peak) == device.allocated_bytes
    assert sum(size for _, size in (*device.at_peak, *device.beyond)) == device.peak_cached_bytes
    assert report.gradient_bytes == report.weight_bytes == 2 * 1_001_000 * 4
    assert dict(device.card)["driver"] is not None
    assert not torch._C._cuda_isHistoryEnabled()
    out = capsys.readouterr().out
    assert "At the iteration's peak...." in out
    assert f"{'Cached beyond that':.<45s}" in out


def test_a_compiled_region_with_scopes_is_one_graph() -> None:
    from torch._dynamo.testing import CompileCounter

    @gpuledger.scope("decorated")
    def function(x: torch.Tensor) -> torch.Tensor:
        with gpuledger.scope("inside"):
            return x.sin() + 1

    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    x = torch.ones(10, device="cuda")
    for _ in range(2):
        assert torch.equal(compiled(x), x.sin() + 1)
    assert counter.frame_count == 1
