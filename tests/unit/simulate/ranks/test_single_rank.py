"""A program that makes a process group of one rank needs no others, and is simulated with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch.distributed as dist
from loop_programs import estimate_of

from gpuledger.errors import InputError

pytestmark = pytest.mark.torch
MIB = 1 << 20
SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
{begin}
model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(4, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
{end}
"""
LAYER = "torch.nn.Linear(1024, 1024, bias=False).cuda()"
END = """
objects = [None]
dist.all_gather_object(objects, {"loss": 1})
assert objects == [{"loss": 1}]
dist.broadcast_object_list(objects, src=0)
total = torch.ones(4, device="cuda")
dist.all_reduce(total)
assert (dist.get_world_size(), dist.get_backend()) == (1, "nccl")
dist.destroy_process_group()
"""
GIVEN = "dist.init_process_group('nccl', init_method='tcp://127.0.0.1:29511', rank=0, world_size=1)"
OF_ENVIRONMENT = "os.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1'); dist.init_process_group('nccl')"


@pytest.mark.parametrize("begin", [GIVEN, OF_ENVIRONMENT])
def test_a_group_of_one_rank_is_simulated(tmp_path: Path, begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    plain = estimate_of(tmp_path, SCRIPT.format(begin="", model=LAYER, end=""))
    found = estimate_of(tmp_path, SCRIPT.format(begin=begin, model=f"DistributedDataParallel({LAYER})", end=END))
    buckets_bytes = found.peak_allocated_bytes - plain.peak_allocated_bytes
    assert buckets_bytes == pytest.approx(4 * MIB, abs=MIB / 2)
    sharded = estimate_of(tmp_path, SCRIPT.format(begin=begin, model=f"fully_shard({LAYER})", end=END))
    assert sharded.peak_allocated_bytes > plain.peak_allocated_bytes
    notes = " ".join((*found.notes, *sharded.notes))
    assert "after the simulated steps" not in notes  # no error
    assert "all_gather_object" not in notes  # the only rank's object is that of every rank
    assert not dist.is_initialized()


def test_the_number_of_ranks_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"torch\.distributed is not supported") as caught:
        estimate_of(tmp_path, SCRIPT.format(begin="dist.init_process_group('nccl')", model=LAYER, end=""))
    assert "--world-size" in str(caught.value.hint)
    assert "WORLD_SIZE" not in os.environ
