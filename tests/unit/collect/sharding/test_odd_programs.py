"""Programs that destroy their process group, change the mesh or shard a module twice: nothing is guessed, sums hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_ranks import Net, fake_ranks, train
from recorded import Recorded, record_own
from torch import distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

from gpuledger.analyze.overview.summary import recording_notes
from gpuledger.model.run import Rank

pytestmark = pytest.mark.torch

MODEL = 4 * (2 * 128 * 64 + 4 * 64 * 256)


def trained(shape: tuple[int, ...], names: tuple[str, ...]) -> tuple[object, ...]:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 2)
    return model, optimizer


def kept(run: Recorded, least: int = 1024) -> Counter[str]:
    """Return the bytes of large blocks that stay, by category."""
    found: Counter[str] = Counter()
    for block in run.blocks:
        if block.kept and block.bytes >= least:
            found[block.category] += block.bytes
    return found


def record_all(program: Any) -> Recorded:
    run = record_own(program)
    assert [check for check in run.manifest.checks if not check.ok] == []
    assert run.manifest.notes == ()
    return run


def test_what_follows_a_destroyed_process_group_is_not_sharded() -> None:
    def program(_: object) -> object:
        with fake_ranks(4, rank=1):
            held = trained((4,), ("dp",))
        after = nn.Linear(64, 64, bias=False)
        after(torch.randn(4, 64)).sum().backward()
        return held, after

    run = record_all(program)
    one = 4 * 64 * 64
    assert kept(run) == {
        "sharded_weight": MODEL // 4,
        "sharded_gradient": MODEL // 4,
        "sharded_optimizer_state": 2 * MODEL // 4,
        "weight": one,
        "gradient": one,
    }


def test_two_meshes_in_one_program() -> None:
    def program(_: object) -> object:
        with fake_ranks(4):
            return trained((4,), ("dp",)), trained((2, 2), ("replicate", "dp"))

    run = record_all(program)
    assert kept(run)["sharded_weight"] == MODEL // 4 + MODEL // 2
    assert kept(run)["sharded_optimizer_state"] == 2 * (MODEL // 4 + MODEL // 2)


@pytest.mark.parametrize("shapes", [[{"dp": 4}, {"replicate": 2, "dp": 2}], [{"dp": 4}, {"dp": 4}]])
def test_several_meshes_are_named(shapes: list[dict[str, int]]) -> None:
    with fake_ranks(4):
        run = record_all(lambda _: [trained(tuple(shape.values()), tuple(shape)) for shape in shapes])
    notes = recording_notes(Rank(0, Path("run/rank-0"), run.manifest))
    mesh = run.manifest.mesh
    assert mesh is not None
    assert mesh.sizes() == shapes[1]
    if shapes[0] == shapes[1]:
        assert (run.manifest.meshes, notes) == ((), [])
    else:
        assert [one.sizes() for one in run.manifest.meshes] == shapes
        said = "The program has 2 device meshes: dp=4, replicate=2×dp=2. Coordinates of ranks are those in"
        assert notes == [f"{said} replicate=2×dp=2."]


def test_a_module_that_is_sharded_twice_is_refused_by_torch_alone() -> None:
    def program(_: object) -> object:
        with fake_ranks(4):
            model = Net()
            fully_shard(model.blocks[0])
            with pytest.raises(AssertionError):
                fully_shard(model.blocks[0])
            fully_shard(model)
            train(model, torch.optim.SGD(model.parameters()), 1)
            return model

    assert kept(record_all(program)) == {"sharded_weight": MODEL // 4, "sharded_gradient": MODEL // 4}


def test_tied_weights_are_counted_once() -> None:
    def program(_: object) -> object:
        with fake_ranks(4):
            model = Net()
            model.head.weight = model.embed.weight
            fully_shard(model)
            optimizer = torch.optim.Adam(model.parameters())
            train(model, optimizer, 2)
            return model, optimizer

    tied = MODEL - 4 * 128 * 64
    assert kept(record_all(program))["sharded_weight"] == tied // 4
    assert kept(record_all(program))["sharded_optimizer_state"] == 2 * tied // 4


def test_a_norm_in_sequence_parallel_has_whole_weights() -> None:
    def program(_: object) -> object:
        with fake_ranks(2):
            model = nn.Sequential(nn.LayerNorm(4096), nn.LayerNorm(4096))
            parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": SequenceParallel(), "1": SequenceParallel()})
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(2, 8, 4096)).sum().to_local().backward()
                optimizer.step()
            return model, optimizer

    weights = 4 * 2 * 2 * 4096
    assert kept(record_all(program), 4096) == {
        "weight": weights,
        "gradient": weights,
        "optimizer_state": 2 * weights,
    }
