"""Expert, context and two-dimensional parallel, offloaded shards, and collectives of the program's own."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
from fake_ranks import Net, fake_ranks, train
from recorded import Recorded, record_own
from torch import Tensor, distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROW = 4 * 64
EXPERT = 4 * 64 * 64
MODEL = 4 * (2 * 128 * 64 + 4 * 64 * 256)


class Experts(nn.Module):
    """Some of the experts: tokens are exchanged among the ranks before and after."""

    def __init__(self, mesh: DeviceMesh, count: int) -> None:
        super().__init__()
        self.up: Any = nn.Parameter(distribute_tensor(torch.randn(count, 64, 64), mesh, [Shard(0)]))
        self.group = mesh.get_group()

    def forward(self, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        tokens = collectives.all_to_all_single_autograd(x, received, sent, self.group)
        mine = self.up.to_local()
        rows = torch.cat([part @ one for part, one in zip(tokens.chunk(len(mine)), mine, strict=True)])
        return collectives.all_to_all_single_autograd(rows, sent, received, self.group)


class Routed(nn.Module):
    """A router, and experts that get unequal numbers of tokens."""

    def __init__(self, mesh: DeviceMesh, count: int) -> None:
        super().__init__()
        self.router = nn.Linear(64, 64, bias=False)
        self.experts = Experts(mesh, count)

    def forward(self, x: Tensor, received: list[int]) -> Tensor:
        return self.experts(self.router(x), [25, 5, 10, 0], received)


class Attention(nn.Module):
    """Attention over a sequence of which each rank has a part: keys and values are gathered."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192, bias=False)
        self.group = mesh.get_group()

    def forward(self, x: Tensor) -> Tensor:
        query, *others = self.qkv(x).chunk(3, -1)
        key, value = (collectives.all_gather_tensor_autograd(one.contiguous(), 0, self.group) for one in others)
        return torch.softmax(query @ key.T, -1) @ value


def record_all(program: Any) -> Recorded:
    """Return a recording of which every check of the replay holds."""
    run = record_own(program)
    assert [check for check in run.manifest.checks if not check.ok] == []
    assert run.manifest.notes == ()
    return run


def kept(run: Recorded, least: int = 1024) -> Counter[tuple[str, str]]:
    """Return the bytes of large blocks that stay, by category and module."""
    found: Counter[tuple[str, str]] = Counter()
    for block in run.blocks:
        if block.kept and block.bytes >= least:
            found[block.category, block.module] += block.bytes
    return found


def made(run: Recorded, category: str, step: int, least: int = 1024) -> Counter[tuple[str, int]]:
    """Return module and bytes of the large blocks of a category that a step allocated."""
    return Counter((b.module, b.bytes) for b in run.of(category) if b.step == step and b.bytes >= least)


@pytest.mark.parametrize(("count", "rank", "mine"), [(8, 0, 2), (6, 2, 2), (5, 2, 1)])
def test_experts_are_shards_and_their_tokens_are_activations(count: int, rank: int, mine: int) -> None:
    received = [(3, 50, 0, 7), (20, 0, 1, 1), (90, 0, 0, 0)]

    def program(_: object) -> object:
        with fake_ranks(4, rank):
            mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("ep",))
            model = Routed(mesh, count)
            optimizer = torch.optim.Adam(model.parameters())
            for tokens in received:
                optimizer.zero_grad()
                model(torch.randn(40, 64), list(tokens)).square().sum().backward()
                optimizer.step()
            return model, optimizer

    run = record_all(program)
    assert kept(run) == {
        ("sharded_weight", "experts"): -(-count // 4) * EXPERT,  # the largest part: others are padded
        ("sharded_gradient", "experts"): mine * EXPERT,
        ("sharded_optimizer_state", "experts"): 2 * mine * EXPERT,
        ("weight", "router"): EXPERT,
        ("gradient", "router"): EXPERT,
        ("optimizer_state", "router"): 2 * EXPERT,
    }
    for step, tokens in enumerate(received, 1):
        assert made(run, "activation", step)["experts", sum(tokens) * ROW] >= 1
    assert run.manifest.mesh is not None
    assert run.manifest.mesh.coordinates() == {"ep": rank}
    divided = [row for row in run.tables["shards"] if run.paths[row["module_id"]] == "experts"]
    assert [(row["whole_bytes"], row["parts"]) for row in divided] == [(count * EXPERT, 4)]


def test_a_divided_sequence_has_whole_weights_and_gathered_activations() -> None:
    def program(_: object) -> object:
        with fake_ranks(4, rank=1):
            mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("cp",))
            model = nn.Sequential(Attention(mesh), Attention(mesh))
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(16, 64)).sum().backward()
                optimizer.step()
            return model, optimizer

    run = record_all(program)
    weights = 3 * EXPERT
    assert kept(run) == {(kind, f"{one}.qkv"): weights for kind in ("weight", "gradient") for one in (0, 1)}
    for layer in ("0", "1"):
        assert made(run, "activation", 2)[layer, 4 * 16 * ROW] == 2  # keys and values of the whole sequence


def test_two_dimensions_divide_a_weight_by_both() -> None:
    def program(_: object) -> object:
        with fake_ranks(8, rank=3):
            mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
            sizes = (64, 256), (256, 64), (64, 256)
            model = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
            fully_shard(model, mesh=mesh["dp"])
            optimizer = torch.optim.Adam(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(8, 64)).sum().backward()
                optimizer.step()
            return model, optimizer

    run = record_all(program)
    matrix = 4 * EXPERT
    found = kept(run)
    for category, times in (("sharded_weight", 1), ("sharded_optimizer_state", 2)):
        for module, parts in (("0", 8), ("1", 8), ("2", 4)):
            assert found[category, module] == times * matrix // parts
    assert run.manifest.mesh is not None
    assert run.manifest.mesh.coordinates() == {"dp": 1, "tp": 1}


def test_a_stage_of_a_pipeline_is_a_coordinate_although_only_the_rest_of_the_mesh_divides_weights() -> None:
    def program(_: object) -> object:
        with fake_ranks(8, rank=6):
            mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "dp"))
            model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False))
            fully_shard(model, mesh=mesh["dp"])
            optimizer = torch.optim.SGD(model.parameters())
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(8, 64)).sum().backward()
                optimizer.step()
            return model, optimizer

    run = record_all(program)
    assert run.manifest.mesh is not None
    assert run.manifest.mesh.coordinates() == {"pp": 1, "dp": 2}
    # Modules of other tests that are still alive are not divided.
    shards = [row for row in run.tables["shards"] if row["parts"] > 1]
    assert {(row["whole_bytes"], row["shard_bytes"], row["parts"]) for row in shards} == {(4 * EXPERT, EXPERT, 4)}


def test_offloaded_shards_are_shards() -> None:
    def program(_: object) -> object:
        with fake_ranks(4):
            model, policy = Net(), CPUOffloadPolicy(pin_memory=False)
            for block in model.blocks:
                fully_shard(block, offload_policy=policy)
            fully_shard(model, offload_policy=policy)
            optimizer = torch.optim.Adam(model.parameters())
            train(model, optimizer, 3)
            return model, optimizer

    totals: Counter[str] = Counter()
    for (category, _), size in kept(record_all(program)).items():
        totals[category] += size
    assert totals == {
        "sharded_weight": MODEL // 4,
        "sharded_gradient": MODEL // 4,
        "sharded_optimizer_state": 2 * MODEL // 4,
    }


def test_buffers_of_the_programs_own_collectives_are_not_guessed() -> None:
    def program(_: object) -> object:
        with fake_ranks(4):
            model = Net()
            optimizer, gathered = torch.optim.SGD(model.parameters()), []
            for _ in range(3):
                gathered.append(torch.empty(4 * 4096))
                distributed.all_gather_into_tensor(gathered[-1], torch.ones(4096))
                work = distributed.all_reduce(torch.ones(2048), async_op=True)
                assert work is not None
                work.wait()
                train(model, optimizer, 1)
                for parameter in model.parameters():
                    distributed.all_reduce(parameter.grad)
            return model, optimizer, gathered

    run = record_all(program)
    assert kept(run)["other", ""] == 3 * 4 * 4 * 4096
    for absent in ("communication", "reduce_scatter", "gathered_weight", "sharded_weight"):
        assert run.of(absent) == []


def test_a_process_group_that_is_destroyed_and_made_again_while_a_model_trains() -> None:
    def program(_: object) -> object:
        with fake_ranks(4, rank=1):
            model = Net()
            fully_shard(model)
            optimizer = torch.optim.SGD(model.parameters())
            train(model, optimizer, 1)
        train(model, optimizer, 1)
        with fake_ranks(2):
            train(model, optimizer, 1)
        return model, optimizer

    run = record_all(program)
    totals: Counter[str] = Counter()
    for (category, _), size in kept(run).items():
        totals[category] += size
    assert totals == {"sharded_weight": MODEL // 4, "sharded_gradient": MODEL // 4}


def test_a_mesh_that_is_not_torchs_own_divides_nothing_that_is_known() -> None:
    class OwnMesh(DeviceMesh):
        pass

    def program(_: object) -> object:
        with fake_ranks(4):
            mesh = init_device_mesh("cpu", (4,))
            model: Any = nn.Linear(64, 64, bias=False)
            model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
            spec = copy.copy(model.weight._spec)  # torch shares one among tensors, which may be known already
            object.__setattr__(spec, "mesh", OwnMesh("cpu", [0, 1, 2, 3], _init_backend=False))
            model.weight._spec = spec
            plain = nn.Linear(64, 64, bias=False)
            optimizer = torch.optim.SGD(plain.parameters())
            plain(torch.randn(4, 64)).sum().backward()
            optimizer.step()
            return model, plain, optimizer

    run = record_all(program)
    assert run.of("sharded_weight") == []
    assert run.manifest.mesh is None
    assert {row["parts"] for row in run.tables["shards"]} == {1}
