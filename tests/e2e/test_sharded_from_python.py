"""Estimates of sharded training from Python: the numbers and errors of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import gpuledger
from gpuledger.cli.main import main

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_children")]

SHARDED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
width, layers = int(sys.argv[1]), int(sys.argv[2])
model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(9):
    model(torch.randn(8, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SHARDED, encoding="utf-8")
    return str(path)


def asked(*words: object) -> dict[str, object]:
    result = CliRunner().invoke(main, ["estimate", "-q", "--json", *map(str, words)])
    assert result.exit_code == 0, result.stderr
    document: dict[str, object] = json.loads(result.stdout)
    return document


def test_ranks_are_those_of_the_command(script: str, tmp_path: Path) -> None:
    out = tmp_path / "python.ledger"
    found = gpuledger.estimate_ranks(script, "512", "4", world_size=4, ranks=range(3), gpu="l4", out=out)
    shown = asked("--world-size", 4, "--ranks", "0,1,2", "--gpu", "l4", "--out", tmp_path / "command", script, 512, 4)
    peaks = [(one.rank, one.coordinate, one.estimate.peak_allocated_bytes) for one in found.ranks]
    ranks = shown["ranks"]
    assert isinstance(ranks, list)
    assert peaks == [(one["rank"], one["coordinate"], one["peak_allocated_bytes"]) for one in ranks]
    assert (found.world_size, found.fits, found.verdict) == (4, shown["fits"], shown["verdict"])
    assert found.nccl_bytes == shown["nccl_bytes"]
    assert found.nccl_bytes > 0
    assert list(found.notes) == shown["notes"]
    assert [rank.number for rank in gpuledger.load(out).ranks] == [0, 1, 2]
    with pytest.raises(gpuledger.UsageError, match=r"python\.ledger: cannot be created: File exists"):
        gpuledger.estimate_ranks(script, "512", "4", world_size=4, out=out)


def test_the_smallest_number_is_that_of_the_command(script: str) -> None:
    """16 bytes of each of 1.0 G parameters are divided: one rank of a T4 does not fit them."""
    found = gpuledger.find_world_size(script, "9216", "12", most=4, gpu="t4", steps=2)
    shown = asked("--find-world-size", 4, "--gpu", "t4", "--steps", 2, script, 9216, 12)
    assert found.smallest == shown["smallest"]
    assert found.smallest is not None
    assert found.smallest > 1
    trials = shown["trials"]
    assert isinstance(trials, list)
    tried = [(one.world_size, one.verdict, one.process_bytes) for one in found.trials]
    assert tried == [(one["world_size"], one["verdict"], one["peak_process_bytes"]) for one in trials]


def test_wrong_arguments_are_named_as_in_python(script: str, tmp_path: Path) -> None:
    out = tmp_path / "none.ledger"
    with pytest.raises(gpuledger.UsageError, match=r"^world size 0: expected 1 to 65,536 ranks"):
        gpuledger.estimate_ranks(script, world_size=0, out=out)
    with pytest.raises(gpuledger.UsageError, match=r"^rank 4: there are ranks 0 to 3"):
        gpuledger.estimate_ranks(script, world_size=4, ranks=[4], out=out)
    with pytest.raises(gpuledger.UsageError, match=r"^estimate_ranks\(steps=0\): steps must be 1 or more"):
        gpuledger.estimate_ranks(script, world_size=4, steps=0, out=out)
    with pytest.raises(gpuledger.UsageError, match=r"^find_world_size\(confidence=1\): expected 0.5 to 0.999"):
        gpuledger.find_world_size(script, confidence=1)
    with pytest.raises(gpuledger.UsageError, match=r"^at most 0 ranks: expected 1 to 65,536"):
        gpuledger.find_world_size(script, most=0)
    with pytest.raises(gpuledger.UsageError, match=r"nothing\.py: no such script"):
        gpuledger.find_world_size("nothing.py")
    with pytest.raises(gpuledger.InputError, match=r"IndexError.*\(rank 0 of 2\)"):
        gpuledger.estimate_ranks(script, world_size=2, out=out)
    assert not out.exists()
