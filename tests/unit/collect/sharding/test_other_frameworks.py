"""Shards of tensor parallel and of a divided optimizer."""

from __future__ import annotations

from collections.abc import Iterator

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

pytestmark = pytest.mark.torch

MATRIX = 4 * 64 * 256


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


def test_one_rank_of_one_has_no_world() -> None:
    distributed.destroy_process_group()
    try:
        run = record_own(lambda _: nn.Linear(8, 8)(torch.randn(2, 8)))
    finally:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    assert run.manifest.world is None
    assert run.tables["shards"] == []
