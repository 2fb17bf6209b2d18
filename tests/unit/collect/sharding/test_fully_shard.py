"""Memory of fully_shard has categories of its own, each byte on its module, and nothing of ours stays in torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_ranks import Block, Net, fake_ranks, train
from recorded import Recorded, record_own
from torch import distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from gpuledger.collect.adapter import distributed_tensors
from gpuledger.collect.adapter.program_objects import kind_name
from gpuledger.collect.adapter.torch_entrances import torchs_own
from gpuledger.collect.sharding import fully_shard as adapter
from gpuledger.collect.sharding.fully_shard import FullyShardedGroups

pytestmark = pytest.mark.torch

EMBED = HEAD = 4 * 128 * 64
MATRIX = 4 * 64 * 256
MODEL = EMBED + HEAD + 4 * MATRIX


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with fake_ranks(4):
        yield


def sharded_net(dims: tuple[int, ...] = (4,), **policy: Any) -> Net:
    names = ("replicate", "dp")[-len(dims) :]
    mesh = init_device_mesh("cpu", dims, mesh_dim_names=names)
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    return model


def record_training(dims: tuple[int, ...] = (4,), steps: int = 3, **policy: Any) -> Recorded:
    def program(_: object) -> object:
        model = sharded_net(dims, **policy)
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, steps)
        return model, optimizer

    return record_own(program)


def sizes(run: Recorded, category: str, step: int) -> Counter[tuple[str, int]]:
    """Return module and bytes of each block that a step allocated."""
    return Counter((block.module, block.bytes) for block in run.of(category) if block.step == step and block.bytes > 16)


def test_every_block_of_a_step_has_its_category_and_module() -> None:
    run = record_training()
    assert run.manifest.notes == ()
    gathered = {"blocks.0.up": MATRIX, "blocks.0.down": MATRIX, "blocks.1.up": MATRIX, "blocks.1.down": MATRIX}
    root = run.of("sharded_gradient")[-1].module
    assert sizes(run, "sharded_weight", 0) == Counter(
        [*((path, size // 4) for path, size in gathered.items()), ("embed", EMBED // 4), ("head", HEAD // 4)]
    )
    # The last block's weights stay gathered between forward and backward, and the root's after its forward.
    assert set(sizes(run, "gathered_weight", 2)) == {*gathered.items(), ("embed", EMBED), ("head", HEAD)}
    assert sizes(run, "gradient", 2) == Counter([*gathered.items(), ("embed", EMBED), ("head", HEAD)])
    group = {"blocks.0": 2 * MATRIX, "blocks.1": 2 * MATRIX, root: EMBED + HEAD}
    assert sizes(run, "reduce_scatter", 2) == Counter(group.items())
    assert sizes(run, "sharded_gradient", 2) == Counter((path, size // 4) for path, size in group.items())
    assert set(sizes(run, "communication", 2)) == set(group.items())
    assert run.bytes_of("sharded_optimizer_state") == 2 * MODEL // 4
    assert sizes(run, "weight", 0) == Counter([*gathered.items(), ("embed", EMBED), ("head", HEAD)])
    assert [block for block in run.of("weight") if block.kept] == []  # they are divided before the first step
    assert [block for block in run.of("other") if block.bytes > 16] == []


def test_sharded_modules_have_the_names_of_the_programs_classes() -> None:
    """``FSDPBlock`` would not fit the same training on one GPU."""
    kinds = {row["path"]: row["class_name"] for row in record_training(steps=1).tables["modules"]}
    assert [kinds[path] for path in ("Net", "blocks.0", "blocks.1", "blocks.0.up")] == [
        "Net",
        "Block",
        "Block",
        "Linear",
    ]


def test_a_class_of_the_program_keeps_its_name() -> None:
    class Wrapped(FSDPModule, nn.Identity):  # type: ignore[misc]
        pass

    class FSDPLike(nn.Identity):
        pass

    assert [kind_name(nn.Module.__new__(kind)) for kind in (FSDPLike, nn.Identity)] == ["FSDPLike", "Identity"]
    assert kind_name(object.__new__(Wrapped)) == "Wrapped"


@pytest.mark.parametrize("reshard", [True, False])
def test_gathered_weights_end_when_they_are_freed(reshard: bool) -> None:
    run = record_training(reshard_after_forward=reshard)
    assert [block for block in run.of("gathered_weight") if block.kept] == []
    again = {True: 2, False: 1}[reshard]
    assert sizes(run, "gathered_weight", 2)["blocks.0.up", MATRIX] == again


def test_mixed_precision_gathers_and_reduces_in_its_own_types() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    run = record_training(mp_policy=policy)
    assert set(sizes(run, "gathered_weight", 2)) >= {("blocks.0.up", MATRIX // 2), ("blocks.1.down", MATRIX // 2)}
    assert sizes(run, "gradient", 2)["blocks.0.up", MATRIX // 2] == 1
    assert sizes(run, "reduce_scatter", 2)["blocks.0", 2 * MATRIX] == 1
    assert sizes(run, "sharded_gradient", 2)["blocks.0", 2 * MATRIX // 4] == 1
    # the shards are cast before they are gathered
    assert sizes(run, "communication", 2)["blocks.0", 2 * MATRIX // 2 // 4] == 2


def test_gradients_reduced_in_another_type_are_shards_in_the_weights_type() -> None:
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
    run = record_training(mp_policy=policy)
    assert sizes(run, "reduce_scatter", 2) >= Counter([("blocks.0", MATRIX), ("blocks.0", MATRIX // 4)])
    assert sizes(run, "sharded_gradient", 2)["blocks.0", 2 * MATRIX // 4] == 1


def test_a_mesh_with_copies_shards_over_one_of_its_dimensions() -> None:
    run = record_training((2, 2))
    assert sizes(run, "sharded_weight", 0)["head", HEAD // 2] == 1
    assert sizes(run, "sharded_gradient", 2)["blocks.0", MATRIX] == 1
    assert run.bytes_of("sharded_optimizer_state") == 2 * MODEL // 2


def test_gradients_that_wait_for_a_later_reduction_are_gradients() -> None:
    def program(_: object) -> object:
        model = sharded_net()
        assert isinstance(model, FSDPModule)
        model.set_requires_gradient_sync(False)
        model(torch.randint(0, 128, (4, 16))).sum().backward()
        return model

    run = record_own(program)
    kept = Counter((block.module, block.bytes) for block in run.of("gradient") if block.kept)
    assert kept["blocks.0.up", MATRIX] == 1
    assert run.of("reduce_scatter") == []


def test_shards_of_gradients_that_wait_for_an_all_reduce_are_shards() -> None:
    def program(_: object) -> object:
        model = sharded_net((2, 2))
        model.set_requires_all_reduce(False)  # type: ignore[operator]
        train(model, torch.optim.SGD(model.parameters()), 1)
        return model

    run = record_own(program)
    waiting = {(one.module, one.bytes) for one in run.blocks if one.kept and one.category == "sharded_gradient"}
    assert waiting == {("blocks.0", MATRIX), ("blocks.1", MATRIX), ("Net", (EMBED + HEAD) // 2)}
    assert [one for one in run.of("reduce_scatter") if one.kept] == []


@pytest.mark.parametrize("is_mixed", [True, False])
def test_shards_whose_places_have_whole_weights_at_first_are_not_outside_modules(is_mixed: bool) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if is_mixed else MixedPrecisionPolicy()

    def program(_: object) -> object:
        model = sharded_net(mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            for is_last in (False, True):
                model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
                model.set_reshard_after_backward(is_last)  # type: ignore[operator]
                model(torch.randint(0, 128, (4, 16))).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    run = record_own(program)
    assert {one.module for one in run.of("sharded_optimizer_state")} == {
        *("embed", "head", "blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down")
    }
    shards = [(run.paths[row["module_id"]], row["shard_bytes"]) for row in run.tables["shards"] if row["parts"] > 1]
    assert sum(size for _, size in shards) == MODEL // 4
    assert {one.module for one in run.of("sharded_weight")} == {path for path, _ in shards}


def test_weights_kept_on_fewer_ranks_after_forward_are_gathered() -> None:
    run = record_training((4,), reshard_after_forward=2)
    assert sizes(run, "gathered_weight", 2)["blocks.0.up", MATRIX // 2] == 1


def test_tensors_that_are_not_distributed_keep_their_categories() -> None:
    def program(_: object) -> object:
        model = nn.Sequential(Block(), Block())
        fully_shard(model[0], mesh=init_device_mesh("cpu", (4,)))
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        model(torch.randn(2, 64)).sum().backward()
        optimizer.step()
        return model, optimizer

    run = record_own(program)
    kept = Counter(block.module for block in run.of("weight") if block.bytes > 16 and block.kept)
    assert kept == {"1.up": 1, "1.down": 1}
    assert run.bytes_of("optimizer_state") >= 2 * 2 * MATRIX


def test_an_error_of_the_program_passes_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gather(*_: object, **__: object) -> None:
        raise RuntimeError("no gather")

    monkeypatch.setattr("torch.distributed.fsdp._fully_shard._fsdp_param_group.foreach_all_gather", no_gather)
    with pytest.raises(RuntimeError, match="no gather"):
        record_training()


def test_the_methods_are_torchs_own_again() -> None:
    names = ("unshard", "wait_for_unshard", "post_backward", "reshard")

    def codes() -> list[object]:
        return [torchs_own(getattr(FSDPParamGroup, name)).__code__ for name in names]

    before = codes()
    record_training(steps=1)
    assert codes() == before


def test_a_torch_without_these_methods_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "GROUP_MODULE", "torch.distributed.fsdp")
    run = record_training(steps=1)
    assert any("fully_shard is attributed by its lifetime only" in note for note in run.manifest.notes)
    assert run.of("gathered_weight") == []


def test_names_are_looked_up_once_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[object] = []
    parameters = FullyShardedGroups._parameters

    def counted(self: FullyShardedGroups, group: dict[str, Any]) -> Iterator[Any]:
        for found in parameters(self, group):
            looked_up.append(found)
            yield found

    monkeypatch.setattr(FullyShardedGroups, "_parameters", counted)
    record_training(steps=1)
    once = len(looked_up)
    record_training(steps=4)
    assert 0 < len(looked_up) - once <= once


def test_groups_of_a_second_model_are_not_those_of_the_first() -> None:
    def program(_: object) -> object:
        for _ in range(3):  # each model is freed before the next one, which can have its addresses
            model = sharded_net()
            train(model, torch.optim.AdamW(model.parameters()), 1)
            del model
        return None

    run = record_own(program)
    gathered = Counter(block.module.rpartition(".")[2] for block in run.of("gathered_weight") if block.bytes > 16)
    assert gathered["embed"] == gathered["head"] == 3
    assert gathered["up"] == gathered["down"] == 3 * 2 * 2  # two blocks, in forward and in backward


def test_a_call_that_gathers_nothing_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[object] = []
    see = FullyShardedGroups._see_gathered

    def counted(self: FullyShardedGroups, group: object) -> None:
        looked_at.append(group)
        see(self, group)

    monkeypatch.setattr(FullyShardedGroups, "_see_gathered", counted)
    record_training(steps=2, reshard_after_forward=False)
    assert len(looked_at) == 2 * 3  # once a step for each of the three groups: backward uses what forward has gathered


def test_a_layout_is_read_once_for_the_gradients_of_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    layout_in = distributed_tensors._layout_in

    def counted(spec: object) -> object:
        read.append(spec)
        return layout_in(spec)

    monkeypatch.setattr(distributed_tensors, "_layout_in", counted)
    counts = []
    for steps in (2, 5):
        read.clear()
        record_training(steps=steps)
        counts.append(len(read))
    assert counts[0] == counts[1] > 0
