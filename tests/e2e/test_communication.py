"""DistributedDataParallel's buckets have a category of their own, and nothing of ours stays in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recorded import Recorded, record_own
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed"),
]

WEIGHT_BYTES = 4 * (64 * 64 + 64 + 64 * 8 + 8)


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=vars(distributed)["HashStore"]())
    yield
    distributed.destroy_process_group()


def train(*, views: bool) -> Recorded:
    def program(_: object) -> object:
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        model = DistributedDataParallel(net, gradient_as_bucket_view=views)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
        return model, optimizer

    return record_own(program)


def test_buckets_are_communication() -> None:
    run = train(views=False)
    buckets = [b for b in run.of("communication") if b.bytes > 64]
    assert [(b.bytes, b.phase, b.step, b.kept) for b in buckets] == [
        (WEIGHT_BYTES, "setup", 0, False),
        (WEIGHT_BYTES, "forward", 2, True),  # made anew in the order the gradients came
    ]
    assert {b.module for b in buckets} == {"DistributedDataParallel"}  # the module around all of their gradients
    assert run.bytes_of("gradient") == WEIGHT_BYTES
    assert [b.bytes for b in run.of("other") if b.bytes > 64] == []
    assert run.manifest.collectives == "gloo"
    assert run.manifest.notes == ()


def test_buckets_that_are_the_gradients_are_gradients() -> None:
    run = train(views=True)
    assert run.bytes_of("communication") == 0
    buckets = [b for b in run.of("gradient") if b.phase != "backward"]
    assert [(b.bytes, b.kept) for b in buckets] == [(WEIGHT_BYTES, False), (WEIGHT_BYTES, True)]
    assert {(b.module, b.name) for b in buckets} == {
        ("DistributedDataParallel", "")
    }  # the module around all of their parameters
    copied = [b for b in run.of("gradient") if b.phase == "backward"]
    assert sorted({(b.name, b.bytes) for b in copied}) == [
        *(("0.bias", 4 * 64), ("0.weight", 4 * 64 * 64)),
        *(("2.bias", 4 * 8), ("2.weight", 4 * 64 * 8)),
    ]
    assert (len(copied), [b for b in copied if b.kept]) == (3 * 4, [])


@pytest.mark.parametrize("kind", ["fp16", "PowerSGD"])
def test_what_a_hook_compresses_a_bucket_into_is_communication(kind: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def program(_: object) -> object:
        net = nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU(), nn.Linear(256, 256, bias=False))
        model = DistributedDataParallel(net)
        if kind == "fp16":
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        else:
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 256)).sum().backward()
            optimizer.step()
        return model, optimizer

    run = record_own(program)
    weight_bytes = 2 * 256 * 256 * 4
    in_backward = {block.bytes for block in run.of("communication") if block.phase == "backward"}
    assert max(in_backward) == (weight_bytes // 2 if kind == "fp16" else weight_bytes)  # PowerSGD keeps its errors
    assert {block.module for block in run.of("communication") if block.bytes > 64} == {"DistributedDataParallel"}
    assert max(block.bytes for block in run.of("activation_gradient")) < weight_bytes // 4
    assert run.manifest.notes == ()


def test_the_entrances_are_torchs_own_again() -> None:
    before = DistributedDataParallel._ddp_init_helper, vars(distributed)["Reducer"]._rebuild_buckets
    train(views=False)
    assert (DistributedDataParallel._ddp_init_helper, vars(distributed)["Reducer"]._rebuild_buckets) == before


def test_an_error_while_buckets_are_made_is_the_programs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_buckets(*_: object) -> None:
        raise RuntimeError("no buckets")

    monkeypatch.setattr(DistributedDataParallel, "_ddp_init_helper", no_buckets)
    with pytest.raises(RuntimeError, match="no buckets") as ours:
        record_own(lambda _: DistributedDataParallel(nn.Linear(2, 2)))
    assert "communication.py" not in [Path(entry.path).name for entry in ours.traceback]
