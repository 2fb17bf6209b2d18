"""Shards of tensor parallel and of a divided optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_ranks import Block, fake_ranks
from recorded import Recorded, record_own
from torch import distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpuledger import record
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.analyze.ranks.summaries import summary_tables

pytestmark = pytest.mark.torch

MATRIX = 4 * 64 * 256
STEP = 4
"""Bytes of Adam's step number, a tensor of its own for each parameter."""


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with fake_ranks(2):
        yield


def categories(run: Recorded, least: int = 1024) -> dict[str, set[tuple[str, int]]]:
    """Return module and bytes of the large blocks that stay, by category."""
    found: dict[str, set[tuple[str, int]]] = {}
    for block in run.blocks:
        if block.kept and block.bytes >= least:
            found.setdefault(block.category, set()).add((block.module, block.bytes))
    return found


def test_tensor_parallel_has_shards_and_whole_weights() -> None:
    def program(_: object) -> object:
        model = nn.Sequential(*(nn.Linear(*size, bias=False) for size in ((64, 256), (256, 64), (64, 256))))
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
        return model, optimizer

    run = record_own(program)
    found = categories(run)
    halves, whole = {("0", MATRIX // 2), ("1", MATRIX // 2)}, {("2", MATRIX)}
    assert found["sharded_weight"] == found["sharded_gradient"] == found["sharded_optimizer_state"] == halves
    assert found["weight"] == found["gradient"] == found["optimizer_state"] == whole
    mesh = run.manifest.mesh
    assert mesh is not None
    assert mesh.coordinates() == {"tp": 0}
    of_program = [row for row in run.tables["shards"] if run.paths[row["module_id"]] in {"0", "1", "2"}]
    assert [(row["whole_bytes"], row["shard_bytes"], row["parts"]) for row in of_program] == [
        (MATRIX, MATRIX // 2, 2), (MATRIX, MATRIX // 2, 2), (MATRIX, MATRIX, 1)
    ]  # fmt: skip
    assert [(row["gradient_bytes"], row["state_bytes"], row["state_parts"]) for row in of_program] == [
        (MATRIX // 2, MATRIX + STEP, 2), (MATRIX // 2, MATRIX + STEP, 2), (MATRIX, 2 * MATRIX + STEP, 1)
    ]  # fmt: skip


def test_state_that_is_whole_by_mistake_is_more_than_expected() -> None:
    class Whole(torch.optim.Optimizer):
        def step(self) -> None:  # type: ignore[override]
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter].setdefault("momentum", torch.zeros(parameter.shape))

    def program(_: object) -> object:
        model = nn.Sequential(nn.Linear(64, 256, bias=False))
        parallelize_module(model, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), {"0": ColwiseParallel()})
        model[0].weight.requires_grad_(False)
        optimizer = Whole(model.parameters(), {})
        model(torch.randn(8, 64))
        optimizer.step()
        return model, optimizer

    run = record_own(program)
    assert categories(run)["optimizer_state"] == {("0", MATRIX)}
    row = next(row for row in run.tables["shards"] if run.paths[row["module_id"]] == "0")
    assert (row["gradient_bytes"], row["state_bytes"], row["state_parts"]) == (0, MATRIX // 2, 2)


def test_a_divided_optimizer_keeps_shards_of_the_state() -> None:
    def program(_: object) -> object:
        model = nn.Sequential(Block(), Block())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
        return model, optimizer

    run = record_own(program)
    state = [block for block in run.blocks if block.category == "sharded_optimizer_state" and block.bytes == MATRIX]
    assert len(state) == 2 * 2  # two of four matrices, two tensors each
    assert not [block for block in run.of("optimizer_state") if block.bytes == MATRIX]
    rows = [row for row in run.tables["shards"] if row["whole_bytes"] == MATRIX and row["state_parts"] == 2]
    assert [(row["parts"], row["state_bytes"] // MATRIX) for row in rows].count((1, 2)) == 2
    assert [row["state_bytes"] for row in rows].count(0) == 2  # those of the other rank


def test_one_rank_of_one_has_no_world() -> None:
    distributed.destroy_process_group()
    try:
        run = record_own(lambda _: nn.Linear(8, 8)(torch.randn(2, 8)))
    finally:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    assert run.manifest.world is None
    assert run.tables["shards"] == []


@pytest.mark.parametrize("is_in_optimizer", [True, False])
def test_gradients_are_expected_at_a_peak_in_the_optimizer(is_in_optimizer: bool, tmp_path: Path) -> None:
    with record(out=tmp_path / "run") as recording:
        model = nn.Sequential(nn.Linear(64, 256, bias=False))
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"0": ColwiseParallel()})
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        for _ in range(2):
            loss = model(torch.randn(8, 64)).sum()
            if not is_in_optimizer:
                loss = loss * torch.ones(4 * MATRIX)[0]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    rank = recording.run().rank(0)
    assert (find_peak(rank).phase == "optimizer") == is_in_optimizer
    rows = summary_tables(rank)["breakdown"].to_pylist()
    expected = {row["category"]: row["expected_bytes"] for row in rows if row["module"] == "0"}
    assert expected["sharded_weight"] == MATRIX // 2
    assert expected.get("sharded_gradient") == (MATRIX // 2 if is_in_optimizer else None)
    assert expected["sharded_optimizer_state"] == MATRIX + STEP
