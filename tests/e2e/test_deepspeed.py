"""DeepSpeed's ZeRO on the CPU, two ranks: shards, gathered weights and buckets, and losses as without a recording."""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
from programs import environment, execute, write_script
from quick import quick_python
from recorded import read_recorded

import gpuledger
from gpuledger.analyze.ranks import rank_set
from gpuledger.model.run import Rank

has_deepspeed = find_spec("deepspeed") is not None
pytestmark = [pytest.mark.torch, pytest.mark.skipif(not has_deepspeed, reason="DeepSpeed is not installed")]

TRAIN = """
import contextlib, json, os, sys, traceback
import deepspeed, torch
import torch._dynamo, torch._inductor.compile_fx  # deepspeed.initialize loads them: once here, not in each of six forks
from torch import distributed, nn
import gpuledger

sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # it is C++ that would be compiled, and is not needed


def train(stage, rank, kind):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.manual_seed(rank)
    distributed.init_process_group("gloo", f"file://{os.getcwd()}/meet-{stage}-{kind}", rank=rank, world_size=2)
    deepspeed.init_distributed()
    model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 256, bias=False)).bfloat16()
    zero = {"stage": stage, "reduce_bucket_size": 400_000, "stage3_param_persistence_threshold": 0}
    config = {"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True}, "zero_optimization": zero}
    config |= {"zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    out = f"stage{stage}-{rank}.ledger"
    recorded = gpuledger.record(out=out, steps=(1, 2)) if kind == "recorded" else contextlib.nullcontext()
    losses = []
    with recorded:
        for _ in range(5):
            loss = engine(torch.randn(8, 256).bfloat16()).pow(2).mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    with open(f"{kind}-{stage}-{rank}.json", "w") as file:
        json.dump(losses, file)


def in_forks(stage, kind):
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            try:
                train(stage, rank, kind)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


for stage, kind in ((2, "recorded"), (3, "recorded"), (3, "bare")):
    in_forks(stage, kind)
"""
NUMBERS = 2 * 256 * 1024
HALF = NUMBERS // 2
BUCKET = 400_000
MOMENTS = 2
"""Tensors of Adam's state as large as the weights."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("deepspeed")
    write_script(directory, TRAIN)
    ended = execute(
        [quick_python(), "train.py"], directory, env=environment(DS_ACCELERATOR="cpu", PYTHONWARNINGS="ignore")
    )
    assert ended.status == 0, ended.stderr
    return directory


def rank_of(folder: Path, stage: int) -> Rank:
    return gpuledger.load(folder / f"stage{stage}-0.ledger").rank()


def largest(rank: Rank) -> Counter[str]:
    """Return the largest bytes of each category that are alive at the same time."""
    found: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    blocks = read_recorded(rank).blocks
    changes = [(one.alloc_index, one.bytes, one.category) for one in blocks]
    changes += [(one.free_index, -one.bytes, one.category) for one in blocks if one.free_index is not None]
    for _, size, category in sorted(changes):
        alive[category] += size
        found[category] = max(found[category], alive[category])
    return found


def test_stage_2_divides_gradients_and_updated_weights(folder: Path) -> None:
    found = largest(rank_of(folder, 2))
    assert found["weight"] == 2 * NUMBERS
    assert found["sharded_weight"] == 4 * HALF
    assert found["sharded_optimizer_state"] == pytest.approx(4 * HALF * MOMENTS, abs=64)
    assert found["sharded_gradient"] >= 2 * HALF
    assert 2 * BUCKET <= found["communication"] < 2 * BUCKET + 64


def test_stage_3_divides_and_gathers_weights(folder: Path) -> None:
    found = largest(rank_of(folder, 3))
    assert found["weight"] == 0
    assert found["sharded_weight"] == (2 + 4) * HALF
    assert found["sharded_optimizer_state"] == pytest.approx(4 * HALF * MOMENTS, abs=64)
    assert 0 < found["gathered_weight"] <= 2 * NUMBERS
    assert found["communication"] >= 2 * BUCKET


def test_each_rank_has_to_hold_half_of_the_weights_in_stage_3(folder: Path) -> None:
    rows = rank_of(folder, 3).table("shards").to_pylist()
    assert [row["parts"] for row in rows] == [2, 2]
    assert sum(row["shard_bytes"] for row in rows) == (2 + 4) * HALF


def test_weights_that_stage_2_keeps_whole_are_no_mistake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_set, "LEAST_BYTES", 1)
    run = gpuledger.merge([str(folder / f"stage2-{rank}.ledger") for rank in range(2)], str(folder / "stage2.ledger"))
    found = rank_set.build_rank_set(run)
    assert found is not None
    expected = {one.name: one.expected_bytes for one in found.categories}
    assert (expected["weight"], expected["sharded_weight"]) == (2 * NUMBERS, 4 * HALF)
    assert (expected["sharded_gradient"], expected["sharded_optimizer_state"]) == (4 * HALF, 4 * HALF * MOMENTS)
    assert found.whole_weights == ()


@pytest.mark.parametrize("rank", [0, 1])
def test_losses_are_those_without_a_recording(folder: Path, rank: int) -> None:
    recorded, bare = (json.loads((folder / f"{kind}-3-{rank}.json").read_text()) for kind in ("recorded", "bare"))
    assert recorded == bare
