"""Buckets of DistributedDataParallel, and what it copies into them: gradients of their modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_ranks import fake_ranks
from recorded import Recorded, record_own, record_run
from torch import distributed, nn

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

import gpuledger
from gpuledger.analyze.memory.breakdown import break_down
from gpuledger.analyze.memory.instant import find_peak
from gpuledger.collect.adapter.torch_entrances import torchs_own
from gpuledger.collect.sharding import bucket_views as adapter
from gpuledger.collect.sharding.bucket_views import BucketViews

pytestmark = pytest.mark.torch

MATRIX, STEPS = 4 * 64 * 64, 3


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with fake_ranks(2):
        yield


def parallel(*, views: bool = True) -> DistributedDataParallel:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    found = DistributedDataParallel(model, gradient_as_bucket_view=views)
    found.register_comm_hook(None, noop_hook)  # the process group of the test reduces nothing
    return found


def train(model: nn.Module, *, to_none: bool = True, steps: int = STEPS) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()


def record_training(*, views: bool = True, to_none: bool = True) -> Recorded:
    def program(_: object) -> object:
        model = parallel(views=views)
        train(model, to_none=to_none)
        return model

    return record_own(program)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("views", [True, False])
def test_what_backward_computes_for_a_weight_is_its_gradient(views: bool, to_none: bool) -> None:
    run = record_training(views=views, to_none=to_none)
    made = [block for block in run.blocks if block.phase == "backward" and block.bytes == MATRIX]
    of_weights = {(block.category, block.module, block.name) for block in made}
    assert of_weights >= {("gradient", name, f"{name}.weight") for name in ("0", "2")}
    if views:
        assert of_weights == {("gradient", name, f"{name}.weight") for name in ("0", "2")}
        assert len(made) == 2 * STEPS
        assert not any(block.kept for block in made)


def test_a_bucket_with_weight_and_bias_has_the_name_of_neither() -> None:
    def program(_: object) -> object:
        model = DistributedDataParallel(nn.Linear(64, 64), gradient_as_bucket_view=True)
        model.register_comm_hook(None, noop_hook)
        train(model)
        return model

    (bucket,) = [block for block in record_own(program).of("gradient") if block.kept]
    assert (bucket.name, bucket.bytes) == ("", MATRIX + 4 * 64)
    assert bucket.module == "DistributedDataParallel"


def test_nothing_is_hooked_after_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    see = BucketViews._see

    def counted(views: BucketViews, name_id: int, module_id: int, gradients: object) -> None:
        seen.append(gradients)
        see(views, name_id, module_id, gradients)

    monkeypatch.setattr(BucketViews, "_see", counted)
    model, code = parallel(), torchs_own(DistributedDataParallel.forward).__code__
    record_own(lambda _: train(model))
    assert len(seen) == 4 * STEPS
    train(model)
    assert len(seen) == 4 * STEPS
    assert torchs_own(DistributedDataParallel.forward).__code__ is code


def test_a_second_model_is_hooked_too() -> None:
    def program(_: object) -> object:
        models = parallel(), parallel()
        for model in models:
            train(model, steps=1)
        return models

    run = record_own(program)
    made = [block for block in run.blocks if block.phase == "backward" and block.bytes == MATRIX]
    assert [block.category for block in made] == ["gradient"] * 4


def test_a_torch_without_this_class_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketViews, "module", "torch.distributed")
    monkeypatch.setattr(adapter, "DATA_PARALLEL", "torch.distributed")
    run = record_training()
    assert any("copies into buckets are attributed by their lifetime only" in note for note in run.manifest.notes)


def in_parts(model: nn.Module, bucket_bytes: int, **options: bool) -> DistributedDataParallel:
    found = DistributedDataParallel(model, bucket_cap_mb=bucket_bytes / 2**20, **options)  # type: ignore[arg-type]
    found.register_comm_hook(None, noop_hook)
    return found


def two_blocks() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)) for _ in range(2)))


@pytest.mark.parametrize("is_late", [False, True])
def test_buckets_that_are_no_gradients_are_of_the_module_around_their_gradients(is_late: bool) -> None:
    size = MATRIX + 4 * 64
    made = [in_parts(two_blocks(), 2 * size)] if is_late else []

    def program(_: object) -> object:
        model = made[0] if made else in_parts(two_blocks(), 2 * size)
        train(model)
        return model

    run = record_run(program) if is_late else record_own(program)
    buckets = [(one.module, one.name, one.bytes) for one in run.of("communication") if one.kept and one.bytes > size]
    assert sorted(buckets) == [("0", "", 2 * size), ("1", "", 2 * size)]
    first = [one.module for one in run.of("communication") if one.bytes == 4 * size]
    assert first == ["DistributedDataParallel"]  # one bucket, until the order of the gradients is known


def test_a_bucket_of_one_parameter_has_its_name() -> None:
    def program(_: object) -> object:
        model = in_parts(nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(2))), MATRIX)
        train(model)
        return model

    buckets = [one for one in record_own(program).of("communication") if one.kept and one.bytes >= MATRIX]
    assert sorted((one.module, one.name) for one in buckets) == [("0", "0.weight"), ("1", "1.weight")]


def test_nothing_is_allocated_to_list_the_buckets() -> None:
    run = record_training(views=False)
    large = [one for one in run.blocks if one.bytes == 2 * (MATRIX + 4 * 64) and one.phase == "forward"]
    assert [(one.category, one.kept) for one in large] == [("communication", True)]
    assert all(check.ok for check in run.manifest.checks)


def test_buckets_with_a_sparse_gradient_are_of_the_whole_model() -> None:
    def program(_: object) -> object:
        model = nn.Sequential(nn.EmbeddingBag(32, 64, sparse=True), nn.Linear(64, 64))
        found = in_parts(model, MATRIX)
        for _ in range(STEPS):
            found(torch.randint(0, 32, (4, 8))).square().mean().backward()
            found.zero_grad()
        return found

    run = record_own(program)
    buckets = {one.module for one in run.of("communication") if one.kept and one.bytes > MATRIX}
    assert (buckets, run.manifest.notes) == ({"DistributedDataParallel"}, ())


@pytest.mark.parametrize("views", [True, False])
def test_the_bytes_of_a_bucket_are_on_the_modules_of_its_gradients(views: bool, tmp_path: Path) -> None:
    with gpuledger.record(out=tmp_path / "run", devices="cpu") as recording:
        model = in_parts(two_blocks(), 1 << 20, gradient_as_bucket_view=views)
        train(model)
    rank = recording.run().rank()
    found = break_down(rank, find_peak(rank, -1, 2))
    kind = "gradient" if views else "communication"
    sizes: Counter[str] = Counter()
    for account in found.accounts:
        if account.category == kind:
            sizes[account.module.removeprefix("DistributedDataParallel.")] += account.bytes
    each = MATRIX + 4 * 64
    assert set(sizes) == {"0.0", "0.1", "1.0", "1.1"}
    assert views or set(sizes.values()) == {each}  # otherwise some have a gradient that is not copied yet
    assert sum(account.bytes for account in found.accounts) == found.allocated_bytes
    names = {row["name_id"]: row["name"] for row in rank.table("names").to_pylist()}
    parts = {names[row["name_id"]] for row in rank.table("block_parts").to_pylist()}
    assert len(parts) == 8
    assert all(one.endswith((".weight", ".bias")) for one in parts)
