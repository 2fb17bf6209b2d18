"""Memory of FullyShardedDataParallel (FSDP1) has categories of its own, and every check of the replay holds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from fake_ranks import Block, Net, fake_ranks, train
from recorded import Recorded, record_own
from torch import distributed

if not distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from gpuledger.collect.adapter.torch_entrances import torchs_own
from gpuledger.collect.sharding import flat_parameters as adapter

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]

RANKS = 4
EMBED = HEAD = 4 * 128 * 64
BLOCK = 2 * 4 * 64 * 256
MODEL = EMBED + HEAD + 2 * BLOCK
ROOT = EMBED + HEAD


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    with fake_ranks(RANKS):
        yield


def record_training(steps: int = 3, **options: Any) -> Recorded:
    options = {"use_orig_params": True} | options

    def program(_: object) -> object:
        model = FullyShardedDataParallel(
            Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), **options
        )
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, steps)
        return model, optimizer

    return record_own(program)


def sizes(run: Recorded, category: str, step: int, least: int = 1024) -> Counter[int]:
    """Return the bytes of the large blocks that a step allocated."""
    return Counter(block.bytes for block in run.of(category) if block.step == step and block.bytes >= least)


def kept_bytes(run: Recorded, category: str) -> list[int]:
    """Return the bytes of the large blocks that stay."""
    return [block.bytes for block in run.of(category) if block.kept and block.bytes >= 1024]


def test_every_block_has_its_category() -> None:
    run = record_training()
    assert run.manifest.notes == ()
    assert [check for check in run.manifest.checks if not check.ok] == []
    assert sizes(run, "sharded_weight", 0) == Counter([BLOCK // RANKS, BLOCK // RANKS, ROOT // RANKS])
    # The weights of both blocks are gathered for forward and again for backward; the root's stay.
    assert sizes(run, "gathered_weight", 3) == Counter({BLOCK: 4, ROOT: 1})
    assert sizes(run, "sharded_gradient", 3) == Counter([BLOCK // RANKS, BLOCK // RANKS, ROOT // RANKS])
    assert sizes(run, "gradient", 3) >= Counter([BLOCK, BLOCK, ROOT])
    assert sum(kept_bytes(run, "sharded_optimizer_state")) == 2 * MODEL // RANKS
    for absent in ("gathered_weight", "weight", "other"):
        assert kept_bytes(run, absent) == []


def test_a_model_with_memory_from_before_it_was_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    """``no_sync()`` prepares the handles. Libraries are looked for at the first call of a module."""
    monkeypatch.setattr(adapter.FlatParameters, "module", "imported_later")

    def program(_: object) -> object:
        model = FullyShardedDataParallel(
            Net(),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        optimizer = torch.optim.AdamW(model.parameters())
        for is_last in (False, True, False, True):
            with nullcontext() if is_last else model.no_sync():
                monkeypatch.setitem(sys.modules, "imported_later", sys.modules[adapter.RUNTIME_MODULE])
                model(torch.randint(0, 128, (4, 16))).float().square().mean().backward()
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
        return model, optimizer

    run = record_own(program)
    assert [check for check in run.manifest.checks if not check.ok] == []
    made = [block for block in run.of("other") if block.bytes in (BLOCK, ROOT)]
    gathered = min(block.alloc_index for block in run.of("gathered_weight"))
    assert [block for block in made if block.free_index is None or block.free_index > gathered] == []
    assert set(sizes(run, "gathered_weight", 2)) == {BLOCK, ROOT}
    assert kept_bytes(run, "other") == []


def test_one_parameter_per_handle_is_a_shard() -> None:
    run = record_training(use_orig_params=False)
    assert [check for check in run.manifest.checks if not check.ok] == []
    assert sizes(run, "sharded_gradient", 3) == Counter([BLOCK // RANKS, BLOCK // RANKS, ROOT // RANKS])
    assert sum(kept_bytes(run, "sharded_optimizer_state")) == 2 * MODEL // RANKS
    for absent in ("gathered_weight", "weight", "other"):  # views keep the whole weight's storage, which has no bytes
        assert kept_bytes(run, absent) == []


def test_mixed_precision_gathers_casted_shards() -> None:
    run = record_training(mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    assert sizes(run, "gathered_weight", 3) >= Counter({BLOCK // 2: 4, ROOT // 2: 1})
    assert sizes(run, "communication", 3)[BLOCK // 2 // RANKS] == 4
    assert sizes(run, "sharded_gradient", 3)[BLOCK // RANKS] == 2


def test_the_table_of_shards_has_flat_parameters() -> None:
    run = record_training(steps=1)
    divided = [row for row in run.tables["shards"] if row["parts"] > 1]  # modules of other tests can be alive
    rows = Counter((row["whole_bytes"], row["shard_bytes"], row["parts"]) for row in divided)
    for row in divided:
        assert (row["gradient_bytes"], row["state_bytes"]) == (row["shard_bytes"], 2 * row["shard_bytes"])
        assert row["state_parts"] == row["parts"]
    assert rows == Counter(
        [(BLOCK, BLOCK // RANKS, RANKS), (BLOCK, BLOCK // RANKS, RANKS), (ROOT, ROOT // RANKS, RANKS)]
    )


def test_a_model_that_is_not_divided_has_plain_weights() -> None:
    run = record_training(sharding_strategy=ShardingStrategy.NO_SHARD)
    assert run.of("gathered_weight") == run.of("sharded_weight") == run.of("sharded_optimizer_state") == []
    assert [check for check in run.manifest.checks if not check.ok] == []
    assert run.bytes_of("weight") == MODEL


def test_the_methods_are_torchs_own_again() -> None:
    def codes() -> list[object]:
        return [torchs_own(getattr(FlatParamHandle, name)).__code__ for name in ("pre_unshard", "unshard")]

    before = codes()
    record_training(steps=1)
    assert codes() == before


def test_a_torch_without_these_methods_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "HANDLE_MODULE", "torch.distributed.fsdp")
    run = record_training(steps=1)
    assert any("FullyShardedDataParallel is attributed by its lifetime" in note for note in run.manifest.notes)
    assert run.of("gathered_weight") == []
